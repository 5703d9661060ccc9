package learned

import (
	"testing"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/route/pick"
)

// TestPrefillShowsLoad: the time of a prompt that was computed alone, beyond the pass for its own tokens, is the time of its load. Nothing is
// learned about passes from it.
func TestPrefillShowsLoad(t *testing.T) {
	f := fleet.New(fleet.Hooks{})
	if _, err := f.Put(fleet.Worker{Name: "a", Model: "m", Address: "10.0.0.1:80", Ranks: 1, State: fleet.Ready}); err != nil {
		t.Fatal(err)
	}
	rank, speeds := f.Snapshot().Ranks[0], NewSpeeds(nil)
	class, now := speeds.Of(rank.Worker), time.Unix(1000, 0)
	before := *class.Pass.Pass()

	const own, loaded = 100, 400
	for range 3 {
		k := pick.Booking{Rank: rank, Tokens: pick.Tokens{Prompt: own + loaded, Cached: loaded, Outside: loaded, OutsideTier: fleet.Disk}}
		amount := fleet.Amount{PrefillTokens: own, PrefillTime: time.Second}
		rank.Load.PrefillBegins(false, now)
		rank.Load.Add(amount, now)
		period := fleet.PrefillPeriod{Prompts: 1, Tokens: own, Passes: 1}
		now = now.Add(class.Pass.Pass().Time(workOf(rank, &period)) + loaded*time.Millisecond)
		rank.Load.PrefillEnds(amount, true, now)
		speeds.ObservePrefill(&k, fleet.Ended{Sure: true, Alone: true, At: now})
		now = now.Add(time.Second)
	}
	if got := class.Loads(now)[fleet.Disk].Token; got < 900*time.Microsecond || got > 1100*time.Microsecond {
		t.Errorf("%v a token, want about 1ms", got)
	}
	if *class.Pass.Pass() != before {
		t.Error("the passes were learned from loads")
	}
}
