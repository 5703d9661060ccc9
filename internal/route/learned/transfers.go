package learned

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
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
	Last   uint64      // the sequence hash of its last complete block
	Tokens int         // that the rank does not hold
	Level  fleet.Level // of the place that both workers share
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
			t.speeds.Of(on.Rank.Worker).transfers.observe(on.Level, work, max(0, at.Sub(on.Since)))
		}
	}
}

// ComputesPrompts reports whether prompts are booked on a rank that are not computed yet.
func ComputesPrompts(rank fleet.Rank) bool { return rank.Load.Booked().PrefillTokens > 0 }

// TransferTime returns the expected duration of the transfer of so many tokens to a worker, from one that shares a place of a level with
// it.
func (s *Speeds) TransferTime(w *fleet.Worker, from fleet.Level, tokens int) time.Duration {
	return s.Of(w).Transfers()[from].Prefill(tokens)
}

// transferTimes learns how long transfers take, for each level of the place that both workers share: a slow line between zones must not
// make transfers within a rack look slow. A level without an observation has the times of the nearest one that has some.
//
// All methods but begin are safe for concurrent use. Reading is one atomic load, because every decision reads it.
type transferTimes struct {
	lines atomic.Pointer[[fleet.Levels]perfmodel.Line]

	mu sync.Mutex
	by [fleet.Levels]*perfmodel.Learned // guarded by mu; nil for a level without an observation
}

// begin sets the first estimate, before there is an observation.
func (t *transferTimes) begin(start perfmodel.Line) {
	start.Observed = 0
	var lines [fleet.Levels]perfmodel.Line
	for level := range lines {
		lines[level] = start
	}
	t.lines.Store(&lines)
}

// observe adds a transfer.
func (t *transferTimes) observe(level fleet.Level, work perfmodel.Work, took time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.by[level] == nil {
		t.by[level] = perfmodel.NewLearned(perfmodel.Pass{Prefill: t.firstLocked(level, work, took)})
	}
	t.by[level].Observe(work, took)

	var lines [fleet.Levels]perfmodel.Line
	for level := range fleet.Levels {
		from := t.nearestLocked(level)
		lines[level] = t.by[from].Pass().Prefill
		if from != level {
			lines[level].Observed = 0
		}
	}
	t.lines.Store(&lines)
}

// mostApart bounds the factor between the times of two levels by the first observation of one of them.
const mostApart = 1000

// firstLocked returns the first estimate of a level. Another level's times may be off by orders of magnitude, so they are scaled by the
// first observation.
func (t *transferTimes) firstLocked(level fleet.Level, work perfmodel.Work, took time.Duration) perfmodel.Line {
	line := t.lines.Load()[level]
	expected := (&perfmodel.Pass{Prefill: line}).Time(work)
	if t.by == [fleet.Levels]*perfmodel.Learned{} || expected <= 0 {
		return line
	}
	factor := min(max(float64(took)/float64(expected), 1.0/mostApart), mostApart)
	line.Base = time.Duration(float64(line.Base) * factor)
	line.Token *= factor
	return line
}

// nearestLocked returns the level with observations that is nearest to another one. Of two that are equally near it is the wider place,
// because its line is rather slower than it seems. There must be an observation.
func (t *transferTimes) nearestLocked(level fleet.Level) (nearest fleet.Level) {
	least := int(fleet.Levels)
	for other := range fleet.Levels {
		away := max(int(other)-int(level), int(level)-int(other))
		if t.by[other] != nil && away < least {
			nearest, least = other, away
		}
	}
	return nearest
}

// Transfers returns the times of transfers by the level of the place that both workers share. They must not be changed. A line that was
// observed at another level has no observations.
func (c *Class) Transfers() *[fleet.Levels]perfmodel.Line { return c.transfers.lines.Load() }
