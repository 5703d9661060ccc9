package engine_test

import (
	"testing"
	"time"

	"github.com/stator-project/stator/internal/perfmodel"
	"github.com/stator-project/stator/internal/sim/engine"
)

// TestOverlap: a pass with a decode step of 5 ms and a prompt of 20 ms lasts 25 ms, or 20 ms where they overlap. A pass
// with one of them lasts as long as that one.
func TestOverlap(t *testing.T) {
	for overlap, want := range map[bool]time.Duration{false: 25 * time.Millisecond, true: 20 * time.Millisecond} {
		timing := perfmodel.Linear{PrefillBase: 10 * time.Millisecond, PrefillToken: time.Millisecond, DecodeBase: 5 * time.Millisecond}
		e, err := engine.New(engine.Config{Timing: timing, Overlap: overlap})
		if err != nil {
			t.Fatal(err)
		}
		token := func(int) (uint32, bool) { return 1, false }
		pass := func() time.Duration {
			begin := time.Unix(0, 0)
			end, _ := e.Begin(begin)
			e.End()
			return end.Sub(begin)
		}

		first := &engine.Request{Prompt: make([]uint32, 5), MaxTokens: 3, Next: token}
		second := &engine.Request{Prompt: make([]uint32, 10), MaxTokens: 1, Next: token}
		if err := e.Submit(first); err != nil {
			t.Fatal(err)
		}
		if took := pass(); took != 15*time.Millisecond {
			t.Errorf("overlap %v: a prompt alone takes %v", overlap, took)
		}
		if err := e.Submit(second); err != nil {
			t.Fatal(err)
		}
		if took := pass(); took != want {
			t.Errorf("overlap %v: a pass with both takes %v, want %v", overlap, took, want)
		}
		if took := pass(); took != 5*time.Millisecond {
			t.Errorf("overlap %v: a step alone takes %v", overlap, took)
		}
	}
}
