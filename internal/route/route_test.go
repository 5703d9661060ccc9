package route_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/kvindex"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/prompt/openai"
	"github.com/stator-project/stator/internal/route"
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
	if err := r.SetModels(map[string]*route.ModelConfig{"sim": {Prompt: runes{}, BlockSize: 4, Policy: policy}}); err != nil {
		t.Fatal(err)
	}
	return r
}

func completion(text string) *route.Request {
	return &route.Request{Endpoint: prompt.Completions, Known: true, Source: "envoy-a",
		Parsed: &prompt.Request{Endpoint: prompt.Completions, Model: "sim", Prompts: []openai.Prompt{{Text: text}}}}
}

func TestEachPolicyPicksAndBooks(t *testing.T) {
	for _, policy := range []string{"kv", "round-robin", "random", "least-loaded"} {
		r := newRouter(t, policy, 4)
		var ids []string
		for i := range 8 {
			d := r.Decide(completion(fmt.Sprintf("prompt number %d of the test", i)), start)
			if d.Outcome != route.Picked || d.Address == "" || len(d.Others) != 2 {
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
