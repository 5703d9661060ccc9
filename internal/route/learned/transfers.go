package learned

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/perfmodel"
)

// Transfers are the KV caches on their way to decode workers, by the ids of their decisions. Of each it is learned how long it
// takes: from Handed to the event by which the decode worker reports the prompt's last block. A transfer that is longer on its
// way than maxTransfer is forgotten. All methods are safe for concurrent use.
type Transfers struct {
	speeds *Speeds

	mu   sync.Mutex
	byID map[string]Transfer // guarded by mu; at most maxTransfers
}

// NewTransfers returns transfers whose times speeds learns.
func NewTransfers(speeds *Speeds) *Transfers { return &Transfers{speeds: speeds} }

// Len returns the number of transfers on their way.
func (t *Transfers) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.byID)
}

// Transfer is one prompt on its way.
type Transfer struct {
	Rank   fleet.Rank
	Last   uint64 // the sequence hash of its last complete block
	Tokens int    // that the rank does not hold
	Since  time.Time
}

const (
	maxTransfers = 4096
	MaxTransfer  = 30 * time.Second
)

// Add adds a transfer, if there is room.
func (t *Transfers) Add(id string, on Transfer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byID == nil {
		t.byID = map[string]Transfer{}
	}
	if len(t.byID) < maxTransfers {
		t.byID[id] = on
	}
}

// Settle learns from the transfers that have arrived, in the order of their ids, and forgets the ones that should have arrived.
func (t *Transfers) Settle(arrived func(rank fleet.Rank, last uint64) (at time.Time, ok bool), now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(t.byID)) { // a map has no order, and the learned values depend on it
		on := t.byID[id]
		at, ok := arrived(on.Rank, on.Last)
		if !ok && now.Sub(on.Since) <= MaxTransfer {
			continue
		}
		delete(t.byID, id)
		if ok && !ComputesPrompts(on.Rank) {
			work := perfmodel.Work{Prefills: 1, Tokens: float64(on.Tokens)}
			t.speeds.Of(on.Rank.Worker).Transfer.Observe(work, max(0, at.Sub(on.Since)))
		}
	}
}

// ComputesPrompts reports whether prompts are booked on a rank that are not computed yet.
func ComputesPrompts(rank fleet.Rank) bool { return rank.Load.Booked().PrefillTokens > 0 }

// TransferTime returns the expected duration of the transfer of so many tokens to a worker.
func (s *Speeds) TransferTime(w *fleet.Worker, tokens int) time.Duration {
	return s.Of(w).Transfer.Pass().Prefill.Prefill(tokens)
}
