package route

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/perfmodel"
)

// transfers are the KV caches on their way to decode workers, by the ids of their decisions. Of each it is learned how long it
// takes: from Handed to the event by which the decode worker reports the prompt's last block. A transfer that is longer on its
// way than maxTransfer is forgotten. All methods are safe for concurrent use.
type transfers struct {
	speeds *speeds

	mu   sync.Mutex
	byID map[string]transfer // guarded by mu; at most maxTransfers
}

// transfer is one prompt on its way.
type transfer struct {
	rank   fleet.Rank
	last   uint64 // the sequence hash of its last complete block
	tokens int    // that the rank does not hold
	since  time.Time
}

const (
	maxTransfers = 4096
	maxTransfer  = 30 * time.Second
)

// add adds a transfer, if there is room.
func (t *transfers) add(id string, on transfer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byID == nil {
		t.byID = map[string]transfer{}
	}
	if len(t.byID) < maxTransfers {
		t.byID[id] = on
	}
}

// settle learns from the transfers that have arrived, in the order of their ids, and forgets the ones that should have arrived.
func (t *transfers) settle(arrived func(rank fleet.Rank, last uint64) (at time.Time, ok bool), now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(t.byID)) { // a map has no order, and the learned values depend on it
		on := t.byID[id]
		at, ok := arrived(on.rank, on.last)
		if !ok && now.Sub(on.since) <= maxTransfer {
			continue
		}
		delete(t.byID, id)
		if ok && !computesPrompts(on.rank) {
			work := perfmodel.Work{Prefills: 1, Tokens: float64(on.tokens)}
			t.speeds.of(on.rank.Worker).transfer.Observe(work, max(0, at.Sub(on.since)))
		}
	}
}

// computesPrompts reports whether prompts are booked on a rank that are not computed yet.
func computesPrompts(rank fleet.Rank) bool { return rank.Load.Booked().PrefillTokens > 0 }

// transferTime returns the expected duration of the transfer of so many tokens to a worker.
func (s *speeds) transferTime(w *fleet.Worker, tokens int) time.Duration {
	return s.of(w).transfer.Pass().Prefill.Prefill(tokens)
}
