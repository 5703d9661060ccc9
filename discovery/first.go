package discovery

import (
	"context"
	"time"

	"github.com/stator-project/stator/internal/fleet"
)

// firstTime bounds the wait for the first answers: a name is looked up, and then the engine is asked.
const firstTime = lookupTime + askTime

// firstLook is the pause between two looks at the fleet, which has no event for an answer that changes no state.
const firstLook = 10 * time.Millisecond

// AwaitFirstAnswers waits until the engine of each worker that is asked has been asked once, or its name was looked up in vain.
// It returns after three seconds at the latest, or when ctx ends. [Probe] and [Resolve] must run.
//
// An engine that has not been asked is not ready. A control plane that has just started must not publish that: Envoys
// have the engine from the control plane before it, and would lose it until the answer.
func AwaitFirstAnswers(ctx context.Context, f *fleet.Fleet) {
	ctx, cancel := context.WithTimeout(ctx, firstTime)
	defer cancel()
	tick := time.NewTicker(firstLook)
	defer tick.Stop()

	for !allAsked(f.Snapshot()) {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// allAsked reports whether no worker waits for its first answer.
func allAsked(s *fleet.Snapshot) bool {
	for _, r := range s.Ranks {
		health := r.Load.Health().View()
		if health.State == fleet.HealthUnknown && health.Probed.IsZero() {
			return false
		}
	}
	return true
}
