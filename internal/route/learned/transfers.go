package learned

import (
	"maps"
	"math"
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
			t.speeds.Of(on.Rank.Worker).transfers.observe(on.Level, work, max(0, at.Sub(on.Since)), at)
		}
	}
}

// ComputesPrompts reports whether prompts are booked on a rank that are not computed yet.
func ComputesPrompts(rank fleet.Rank) bool { return rank.Load.Booked().PrefillTokens > 0 }

// TransferTime returns the expected duration of the transfer of so many tokens to a worker, from one that shares a place of a level with
// it.
func (s *Speeds) TransferTime(w *fleet.Worker, from fleet.Level, tokens int, now time.Time) time.Duration {
	return s.Of(w).Transfers(now)[from].Prefill(tokens)
}

// transferTimes learns how long transfers take, for each level of the place that both workers share: a slow line between zones must not
// make transfers within a rack look slow.
//
//	level with observations            its own times, which fall towards the next level's while nothing is observed
//	without, others have observations  the times of the nearest of them
//	no level has observations          the first estimate
//
// Transfers that look too long are not chosen any more, so nothing else would show that they have become faster, or that the first ones
// took long because the engines had to connect.
//
// All methods but begin are safe for concurrent use. Reading is one atomic load, because every decision reads it.
type transferTimes struct {
	lines atomic.Pointer[transferLines]

	mu   sync.Mutex
	by   [fleet.Levels]*perfmodel.Learned // guarded by mu; nil for a level without an observation
	seen [fleet.Levels]time.Time          // the last observations; guarded by mu
}

// transferLines are the times of transfers by level as they were learned.
type transferLines struct {
	by   [fleet.Levels]perfmodel.Line
	from [fleet.Levels]fleet.Level // the level at which they were observed
	// next is the nearest other level with observations; the level itself if there is none.
	next [fleet.Levels]fleet.Level
	seen [fleet.Levels]time.Time // the last observations at the level itself
}

const (
	// transferFresh is the time after an observation for which it counts in full. Then, in each transferHalf, the part of the time by which
	// the level is slower than the next one falls by half.
	transferFresh = time.Minute
	transferHalf  = 5 * time.Minute
	// mostApart bounds the factor between the times of two levels by the first observation of one of them.
	mostApart = 1000
)

// begin sets the first estimate, before there is an observation.
func (t *transferTimes) begin(start perfmodel.Line) {
	start.Observed = 0
	lines := &transferLines{}
	for level := range fleet.Levels {
		lines.by[level] = start
		lines.from[level], lines.next[level] = level, level
	}
	t.lines.Store(lines)
}

// observe adds a transfer.
func (t *transferTimes) observe(level fleet.Level, work perfmodel.Work, took time.Duration, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.by[level] == nil {
		t.by[level] = perfmodel.NewLearned(perfmodel.Pass{Prefill: t.firstLocked(level, work, took)})
	}
	t.by[level].Observe(work, took)
	t.seen[level] = now

	lines := &transferLines{seen: t.seen}
	for level := range fleet.Levels {
		from := level
		if t.by[level] == nil {
			from = t.nearestLocked(level)
		}
		lines.by[level] = t.by[from].Pass().Prefill
		if from != level {
			lines.by[level].Observed = 0
		}
		lines.from[level], lines.next[level] = from, t.nearestLocked(level)
	}
	t.lines.Store(lines)
}

// firstLocked returns the first estimate of a level. Another level's times may be off by orders of magnitude, so they are scaled by the
// first observation.
func (t *transferTimes) firstLocked(level fleet.Level, work perfmodel.Work, took time.Duration) perfmodel.Line {
	line := t.lines.Load().by[level]
	expected := (&perfmodel.Pass{Prefill: line}).Time(work)
	if t.by == [fleet.Levels]*perfmodel.Learned{} || expected <= 0 {
		return line
	}
	factor := min(max(float64(took)/float64(expected), 1.0/mostApart), mostApart)
	line.Base = time.Duration(float64(line.Base) * factor)
	line.Token *= factor
	return line
}

// nearestLocked returns the level with observations that is nearest to another one; the level itself if no other has any. Of two that are
// equally near it is the wider place, because its line is rather slower than it seems.
func (t *transferTimes) nearestLocked(level fleet.Level) (nearest fleet.Level) {
	nearest = level
	least := int(fleet.Levels)
	for other := range fleet.Levels {
		away := max(int(other)-int(level), int(level)-int(other))
		if other != level && t.by[other] != nil && away < least {
			nearest, least = other, away
		}
	}
	return nearest
}

// at returns the times of a level at a moment.
func (l *transferLines) at(level fleet.Level, now time.Time) perfmodel.Line {
	line, from := l.by[level], l.from[level]
	next := &l.by[l.next[from]]
	stale := now.Sub(l.seen[from]) - transferFresh
	if stale <= 0 || l.next[from] == from {
		return line
	}
	keep := math.Exp2(-float64(stale) / float64(transferHalf))
	line.Base -= time.Duration(float64(max(0, line.Base-next.Base)) * (1 - keep))
	line.Token -= max(0, line.Token-next.Token) * (1 - keep)
	return line
}

// Transfers returns the times of transfers by the level of the place that both workers share. A line that was observed at another level
// has no observations.
func (c *Class) Transfers(now time.Time) (lines [fleet.Levels]perfmodel.Line) {
	learned := c.transfers.lines.Load()
	for level := range fleet.Levels {
		lines[level] = learned.at(level, now)
	}
	return lines
}
