package route_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/kvindex"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/prompt/openai"
	"github.com/stator-project/stator/internal/route"
	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/route/request"
	"github.com/stator-project/stator/internal/route/serving"
)

// runes is a model whose tokens are the bytes of a completion's prompt.
type runes struct{ limit int }

func (m runes) Prepare(req *prompt.Request, dst *prompt.Prompt) error {
	for _, c := range []byte(req.Prompts[0].Text) {
		dst.Tokens = append(dst.Tokens, uint32(c))
	}
	dst.Total = len(dst.Tokens)
	if m.limit > 0 && dst.Total > m.limit {
		return &prompt.Error{Status: 400, Type: "invalid_request_error", Param: "prompt",
			Message: fmt.Sprintf("This model's maximum context length is %d tokens, but the prompt has %d. Shorten it.", m.limit, dst.Total)}
	}
	return nil
}

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func newFleet(t testing.TB, x *kvindex.Index, workers int) *fleet.Fleet {
	f := fleet.New(fleet.Hooks{RankGone: x.Drop})
	for i := range workers {
		if _, err := f.Put(fleet.Worker{
			Name: fmt.Sprintf("w%d", i), Model: "sim", Address: fmt.Sprintf("10.0.%d.%d:8000", i/250, i%250+1),
			Ranks: 1, State: fleet.Ready, KVEvents: "tcp://x:1",
		}); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

func newRouter(t testing.TB, policy string, workers int) *route.Router {
	x := kvindex.New(kvindex.Config{MaxBytes: 64 << 20})
	r := route.New(route.Config{Seed: 1}, newFleet(t, x, workers), x)
	if err := r.SetModels(map[string]*serving.Config{"sim": {Prompt: runes{}, BlockSize: 4, Policy: policy}}); err != nil {
		t.Fatal(err)
	}
	return r
}

func completion(text string) *request.Request {
	return &request.Request{Endpoint: prompt.Completions, Known: true, Source: "envoy-a",
		Parsed: &prompt.Request{Endpoint: prompt.Completions, Model: "sim", Prompts: []openai.Prompt{{Text: text}}}}
}

func TestEachPolicyPicksAndBooks(t *testing.T) {
	for _, policy := range []string{"kv", "round-robin", "random", "least-loaded"} {
		r := newRouter(t, policy, 4)
		var ids []string
		for i := range 8 {
			d := r.Decide(completion(fmt.Sprintf("prompt number %d of the test", i)), start)
			if d.Outcome != decision.Picked || d.Address == "" || len(d.Others) != 2 {
				t.Fatalf("%s: %+v", policy, d)
			}
			ids = append(ids, d.ID)
		}
		if r.Bookings() != 8 {
			t.Errorf("%s: %d bookings, want 8", policy, r.Bookings())
		}
		for _, id := range ids {
			if !r.End(id, start) || r.End(id, start) {
				t.Errorf("%s: a booking must end exactly once", policy)
			}
		}
		if r.Bookings() != 0 {
			t.Errorf("%s: %d bookings left", policy, r.Bookings())
		}
	}
}

// TestConcurrent: decisions beside ends, reloads, workers that come and go, and readers.
// When every decision has ended nothing is booked anywhere.
func TestConcurrent(t *testing.T) {
	x := kvindex.New(kvindex.Config{MaxBytes: 4 << 20})
	f := newFleet(t, x, 4)
	r := route.New(route.Config{Seed: 1, Decisions: 64}, f, x)
	models := map[string]*serving.Config{"sim": {Prompt: runes{}, BlockSize: 4}}
	if err := r.SetModels(models); err != nil {
		t.Fatal(err)
	}
	var clients, others sync.WaitGroup
	for g := range 4 {
		clients.Go(func() {
			for i := range 500 {
				d := r.Decide(completion(fmt.Sprintf("a prompt that %d of us share, and number %d", g%2, i%20)), start.Add(time.Duration(i)*10*time.Millisecond))
				if d.Outcome != decision.Picked || d.String() == "" {
					t.Errorf("%s", d)
				}
				r.PrefillDone(d.ID, d.At)
				ending := route.Ending{ID: d.ID, Served: d.Address}
				switch i % 8 {
				case 0:
					ending.Served = "10.0.0.1:8000"
				case 1:
					ending = route.Ending{ID: d.ID, Failed: true}
				}
				if _, ok := r.Ended(ending, d.At.Add(time.Millisecond)); !ok {
					t.Error("a booking was not there to end")
				}
			}
		})
	}
	others.Go(func() {
		for i := range 200 {
			if err := r.SetModels(models); err != nil {
				t.Error(err)
			}
			w := *f.Snapshot().Worker("w3")
			w.Epoch = uint64(i + 1)
			if _, err := f.Put(w); err != nil {
				t.Error(err)
			}
			r.Explain("nobody")
			r.Recent(10)
			r.Models()
			r.Stats()
		}
	})
	clients.Wait()
	others.Wait()
	if n := r.Promised(); n != 0 {
		t.Errorf("%d promises are left", n)
	}
	for _, m := range f.Snapshot().Ranks {
		if b := m.Load.Booked(); b != (fleet.Amount{}) || r.Bookings() != 0 {
			t.Errorf("%s ends with %+v, %d bookings", m.Worker.Name, b, r.Bookings())
		}
	}
}

// TestSameSeedSameDecisions: one at a time, the same requests get the same answers.
func TestSameSeedSameDecisions(t *testing.T) {
	run := func() (text string) {
		r := newRouter(t, "random", 5)
		for i := range 50 {
			d := r.Decide(completion(fmt.Sprint("prompt ", i%7)), start)
			text += d.ID + d.Worker + "\n"
		}
		return text
	}
	if a, b := run(), run(); a != b {
		t.Errorf("%s\nthen\n%s", a, b)
	}
}

// TestEnvoyGone: an Envoy's bookings end with it, and no others.
func TestEnvoyGone(t *testing.T) {
	r := newRouter(t, "kv", 2)
	a, b := completion("one"), completion("two")
	b.Source = "envoy-b"
	r.Decide(a, start)
	r.Decide(b, start)
	if n := r.EndBefore("envoy-a", start.Add(time.Second)); n != 1 || r.Bookings() != 1 {
		t.Errorf("%d ended, %d left", n, r.Bookings())
	}
}
