package learned

import (
	"testing"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/perfmodel"
)

// TestWorkOfPeriods: the requests of a period decode in the passes after their prompts, and those before it in all passes. Nothing decodes on
// a worker that prefills alone. Each request takes 10 blocks of 16 tokens.
func TestWorkOfPeriods(t *testing.T) {
	const context = 160
	for _, c := range []struct {
		name    string
		role    fleet.Role
		booked  int64 // requests, with those of the period
		period  fleet.PrefillPeriod
		steps   float64
		decoded float64 // tokens of answers in these steps
	}{
		{"one prompt", fleet.Aggregated, 1, fleet.PrefillPeriod{Prompts: 1, Passes: 1}, 0, 0},
		{"one prompt in four passes", fleet.Aggregated, 1, fleet.PrefillPeriod{Prompts: 1, Passes: 4}, 0, 0},
		{"two prompts, a pass each", fleet.Aggregated, 2, fleet.PrefillPeriod{Prompts: 2, Passes: 2}, 1, 1},
		{"8 passes of 8 prompts", fleet.Aggregated, 64, fleet.PrefillPeriod{Prompts: 64, Passes: 8}, 7, 8 * (1 + 2 + 3 + 4 + 5 + 6 + 7)},
		{"one prompt beside 5 requests", fleet.Aggregated, 6, fleet.PrefillPeriod{Prompts: 1, Passes: 1}, 1.5, 5 * 1.5},
		{"all have ended", fleet.Aggregated, 0, fleet.PrefillPeriod{Prompts: 2, Passes: 2}, 0, 0},
		{"a prefill worker", fleet.Prefill, 8, fleet.PrefillPeriod{Prompts: 8, Passes: 8}, 0, 0},
	} {
		f := fleet.New(fleet.Hooks{})
		w := fleet.Worker{Name: "a", Model: "m", Address: "10.0.0.1:80", Ranks: 1, State: fleet.Ready, BlockSize: 16, Role: c.role}
		if _, err := f.Put(w); err != nil {
			t.Fatal(err)
		}
		rank := f.Snapshot().Ranks[0]
		rank.Load.Add(fleet.Amount{Requests: c.booked, DecodeBlocks: 10 * c.booked}, time.Time{})
		want := perfmodel.Work{Steps: c.steps, Context: c.decoded * context, Prefills: float64(c.period.Passes)}
		if got := workOf(rank, &c.period); got != want {
			t.Errorf("%s: %+v, want %+v", c.name, got, want)
		}
	}
}
