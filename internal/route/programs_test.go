package route_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/kvindex"
	"github.com/stator-project/stator/internal/route"
	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/route/queue"
	"github.com/stator-project/stator/internal/route/serving"
)

// TestProgramsAreHeldBack: a program whose context has no room in the caches waits, although a rank is free. The steps of the program that is
// there do not wait for it. It goes when that program has sent nothing for a minute, or after half of the longest wait.
func TestProgramsAreHeldBack(t *testing.T) {
	x := kvindex.New(kvindex.Config{MaxBytes: 16 << 20})
	f := fleet.New(fleet.Hooks{})
	if _, err := f.Put(fleet.Worker{Name: "w", Model: "sim", Address: "10.0.0.1:80", Ranks: 1, Blocks: 100, State: fleet.Ready}); err != nil {
		t.Fatal(err)
	}
	r := route.New(route.Config{Seed: 1}, f, x)
	models := map[string]*serving.Config{"sim": {
		Prompt: runes{}, BlockSize: 4, Queue: &queue.Config{}, MaxWait: 10 * time.Minute, Programs: true,
	}}
	if err := r.SetModels(models); err != nil {
		t.Fatal(err)
	}

	// send decides about a prompt of 300 tokens. The channel has the decision of a request that waits.
	send := func(session string, after time.Duration) (*decision.Decision, chan *decision.Decision) {
		req := completion(session + strings.Repeat("x", 300-len(session)))
		ready := make(chan *decision.Decision, 1)
		req.Session, req.Ready = session, func(d *decision.Decision) { ready <- d }
		return r.Decide(req, start.Add(after)), ready
	}
	goes := func(what string, d *decision.Decision) {
		t.Helper()
		if d.Outcome != decision.Picked {
			t.Fatalf("%s: %s", what, d)
		}
	}

	first, _ := send("a", 0)
	goes("the first program", first)
	second, ready := send("b", time.Second)
	if second.Outcome != decision.Queued || !strings.Contains(second.String(), "the caches had no room for another program") {
		t.Fatalf("the second program: %s", second)
	}
	r.End(first.ID, start.Add(2*time.Second))
	step, _ := send("a", 3*time.Second)
	goes("a step of the first program", step)
	r.End(step.ID, start.Add(4*time.Second))

	r.Wake(start.Add(60 * time.Second))
	if len(ready) > 0 {
		t.Fatal("the second program went while the first one paused")
	}
	r.Wake(start.Add(65 * time.Second))
	goes("the second program, after the first one", <-ready)

	third, ready := send("c", 66*time.Second)
	if third.Outcome != decision.Queued {
		t.Fatalf("the third program: %s", third)
	}
	r.Wake(start.Add(66*time.Second + 5*time.Minute))
	goes("the third program, after half of the longest wait", <-ready)
}
