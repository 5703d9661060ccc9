package sim

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/sim/engine"
)

// TestOutcomesAreReported checks the outcome of every request, also of those whose engine dies, and the table
// of the result.
func TestOutcomesAreReported(t *testing.T) {
	list := sessions(20, 4, rand.New(rand.NewPCG(8, 8)))
	seen := map[int]bool{}
	failed := 0
	r := mustRun(t, Config{
		Engine: engine.Config{Blocks: 400, BlockSize: 16}, Restarts: often(time.Second, 200*time.Millisecond), Seed: 7,
		Ended: func(o Outcome) {
			seen[o.Number] = true
			if o.Failed {
				failed++
			} else if o.End < o.First || o.First < o.At || o.Worker < 0 || o.Prompt < 1 || o.Output < 1 {
				t.Errorf("%+v", o)
			}
		},
	}, list)
	if len(seen) != len(list) || failed != r.Errors || failed == 0 {
		t.Errorf("%d outcomes of %d requests, %d failed of %d", len(seen), len(list), failed, r.Errors)
	}
	if text := r.String(); !strings.Contains(text, "prefix reuse") || strings.Count(text, "\n") < 10 {
		t.Error(text)
	}
}

// TestStoppedRunHasFigures stops a run at once.
func TestStoppedRunHasFigures(t *testing.T) {
	r := mustRun(t, Config{Stopped: func() bool { return true }}, sessions(20, 4, rand.New(rand.NewPCG(8, 8))))
	if !r.Interrupted || r.Completed != 0 {
		t.Errorf("%+v", r)
	}
}
