package pick

import (
	"fmt"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/fleet"
)

// TestSettle walks a booking through the table of its states: a prefill that is only supposed to be done
// leaves the rank's load, and is observed once events show its end.
func TestSettle(t *testing.T) {
	start, observed := time.Unix(1000, 0), []string{}
	b := NewBookings(BookingsConfig{
		Prefilled: func(k *Booking, p fleet.Ended) { observed = append(observed, fmt.Sprint(k.Prompt, " in ", p.Took)) },
	})
	load := &fleet.Load{}
	k := Booking{
		Rank: fleet.Rank{Worker: &fleet.Worker{Name: "a"}, Load: load}, At: start, Last: 1, Tokens: Tokens{Prompt: 100},
		Amount: fleet.Amount{Requests: 1, PrefillTokens: 100, DecodeBlocks: 7, PrefillTime: time.Second},
	}
	b.Force("x", k)

	progress := Pending
	settle := func(at time.Duration) (int, int64) {
		now := start.Add(at)
		n := b.Settle(func(*Booking) (Progress, time.Time) { return progress, now }, now)
		return n, load.Booked().PrefillTokens
	}
	for _, step := range []struct {
		progress Progress
		at       time.Duration
		settled  int
		tokens   int64
		observed int
	}{
		{Pending, time.Second, 0, 100, 0},
		{Supposed, 2 * time.Second, 1, 0, 0},
		{Supposed, 3 * time.Second, 0, 0, 0},
		{Computed, 4 * time.Second, 0, 0, 1},
		{Computed, 5 * time.Second, 0, 0, 1},
	} {
		progress = step.progress
		n, tokens := settle(step.at)
		if n != step.settled || tokens != step.tokens || len(observed) != step.observed {
			t.Errorf("after %s: %d settled, %d tokens, observed %q; want %+v", step.at, n, tokens, observed, step)
		}
	}
	if len(observed) != 1 || observed[0] != "100 in 4s" {
		t.Errorf("observed %q", observed)
	}
	if b.End("x", Finished); load.Booked() != (fleet.Amount{}) || Finished.String() != "finished" {
		t.Errorf("%+v is left", load.Booked())
	}
}
