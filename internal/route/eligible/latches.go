package eligible

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/route/serving"
)

// isBusy reports whether a rank is busy now.
func (e *Finder) isBusy(b *serving.Busy, rank *fleet.Rank, now time.Time) bool {
	if !b.IsSet() {
		return false
	}
	booked := rank.Load.Booked()
	return e.IsBusyWith(b, rank, &booked, now)
}

// IsBusyWith reports whether a rank is busy with this booked load.
func (e *Finder) IsBusyWith(b *serving.Busy, rank *fleet.Rank, booked *fleet.Amount, now time.Time) bool {
	if bound := b.PrefillBound(); bound > 0 && booked.PrefillTokens > bound {
		return true
	}
	return b.KVUsage > 0 && e.latches.update(b, rank, booked, now)
}

// kvUsage is the larger of the engine's report and the booked share of a rank's cache.
func kvUsage(rank *fleet.Rank, booked *fleet.Amount, now time.Time) float64 {
	used := 0.0
	if blocks := rank.Worker.Blocks; blocks > 0 {
		used = float64(booked.DecodeBlocks) / float64(blocks)
	}
	if report, ok := rank.Load.LastReport(); ok && now.Sub(report.At) <= fleet.MaxReportAge {
		used = max(used, report.KVUsage)
	}
	return used
}

// latches remember which ranks are busy by the usage of their caches, so that a rank at its threshold
// does not turn busy and free with every request.
//
//	usage                          free rank   busy rank
//	above KVUsage                  busy        busy
//	between                        free        busy
//	below KVRelease of KVUsage     free        free
type latches struct {
	mu   sync.Mutex                     // held to grow bits
	bits atomic.Pointer[[]*atomic.Bool] // by RankID; the slice never changes once stored
}

// update sets the latch of a rank by its usage now, and returns whether the rank is busy.
func (l *latches) update(b *serving.Busy, rank *fleet.Rank, booked *fleet.Amount, now time.Time) bool {
	bit, used := l.latchOf(rank.ID), kvUsage(rank, booked, now)
	release := serving.KVRelease * b.KVUsage
	switch {
	case used > b.KVUsage:
		bit.Store(true)
	case used < release:
		bit.Store(false)
	}
	return bit.Load() && used >= release // another decision may have set the latch meanwhile
}

// latchOf returns the latch of a rank. It makes missing latches up to this rank.
func (l *latches) latchOf(id fleet.RankID) *atomic.Bool {
	if have := l.bits.Load(); have != nil && int(id) < len(*have) {
		return (*have)[id]
	}

	l.mu.Lock()
	defer l.mu.Unlock()
	var next []*atomic.Bool
	if have := l.bits.Load(); have != nil {
		next = append(next, *have...)
	}
	for len(next) <= int(id) {
		next = append(next, &atomic.Bool{})
	}
	l.bits.Store(&next)
	return next[id]
}

// reset frees a rank's latch, because its id will be used for another rank.
func (l *latches) reset(id fleet.RankID) {
	if have := l.bits.Load(); have != nil && int(id) < len(*have) {
		(*have)[id].Store(false)
	}
}
