package route_test

import (
	"testing"

	"github.com/stator-project/stator/internal/kv/kvindex"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/route"
	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/route/serving"
)

// stoppable is a model whose prompts take until their client goes, or no time if it has not.
type stoppable struct {
	quads
	began chan struct{}
}

func (m stoppable) Prepare(req *prompt.Request, dst *prompt.Prompt) error {
	if m.began != nil {
		close(m.began)
		<-dst.Done
		return prompt.ErrStopped
	}
	return m.quads.Prepare(req, dst)
}

// TestRequestsOfClientsThatLeftAreNotBooked closes Done before and while the prompt is prepared.
func TestRequestsOfClientsThatLeftAreNotBooked(t *testing.T) {
	for _, when := range []string{"before", "meanwhile"} {
		x := kvindex.New(kvindex.Config{MaxBytes: 1 << 20})
		r := route.New(route.Config{Seed: 1}, newFleet(t, x, 2), x)
		done, model := make(chan struct{}), stoppable{}
		if when == "before" {
			close(done)
		} else {
			model.began = make(chan struct{})
			go func() { <-model.began; close(done) }()
		}
		if err := r.SetModels(map[string]*serving.Config{"sim": {Prompt: model}}); err != nil {
			t.Fatal(err)
		}

		req := completion("a prompt of nobody")
		req.Done = done
		d := r.Decide(req, start)
		if d.Outcome != decision.Refused || d.Reason != decision.ReasonCancelled || d.Err == nil {
			t.Errorf("%s: %s", when, d)
		}
		if s := r.Stats(); r.Bookings() != 0 || s.Stopped != 1 || s.Refused != 1 || s.BadRequest != 0 {
			t.Errorf("%s: %d bookings, %+v", when, r.Bookings(), s)
		}

		model = stoppable{}
		if err := r.SetModels(map[string]*serving.Config{"sim": {Prompt: model}}); err != nil {
			t.Fatal(err)
		}
		req.Done = nil
		if d := r.Decide(req, start); d.Outcome != decision.Picked {
			t.Errorf("the next request: %s", d)
		}
	}
}
