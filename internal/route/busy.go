package route

import (
	"cmp"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stator-project/stator/internal/fleet"
)

// Busy sets when a rank is busy and takes no more requests. The zero Busy sets no bound.
//
// Engines have queues themselves, so bounds are optional. But a request in an engine's queue can
// neither move to another rank nor be overtaken. Classes, deadlines and fairness therefore need bounds.
type Busy struct {
	// PrefillTokens bounds the booked prompt tokens of a rank that are not computed yet. A rank with more
	// is busy. 0 is no bound.
	PrefillTokens int64
	// PrefillShare sets the same bound as a share of MaxNumBatchedTokens, which is the engine's setting of
	// that name. 0 is no bound. It has no effect if MaxNumBatchedTokens is 0, unknown.
	PrefillShare        float64
	MaxNumBatchedTokens int64
	// KVUsage bounds the share of a rank's KV cache that is in use, 0 to 1. The larger of the engine's
	// report and the booked blocks counts. A rank above it is busy until it is below KVRelease. 0 is no
	// bound. KVRelease 0 means DefaultKVRelease times KVUsage.
	KVUsage, KVRelease float64
	// Status is the HTTP status of a refusal for this reason: 429, 503 (default) or 529.
	Status int
}

// DefaultKVRelease is the share of Busy.KVUsage below which a busy rank is free again.
const DefaultKVRelease = 0.9

// DefaultBusyStatus is the status of a refusal because all ranks are busy.
const DefaultBusyStatus = 503

// Validate reports every field that is wrong, one to a line, each after its key in the configuration.
func (b *Busy) Validate() error {
	var errs []error
	if b.PrefillTokens < 0 {
		errs = append(errs, fmt.Errorf("prefillTokens: is %d, and must be at least 0", b.PrefillTokens))
	}
	if b.MaxNumBatchedTokens < 0 {
		errs = append(errs, fmt.Errorf("maxNumBatchedTokens: is %d, and must be at least 0", b.MaxNumBatchedTokens))
	}
	if !(b.PrefillShare >= 0) {
		errs = append(errs, fmt.Errorf("prefillShare: is %v, and must be at least 0", b.PrefillShare))
	}
	if b.PrefillShare > 0 && b.MaxNumBatchedTokens == 0 {
		errs = append(errs, errors.New("maxNumBatchedTokens: is required with prefillShare: the engines' max_num_batched_tokens"))
	}

	if !(b.KVUsage >= 0 && b.KVUsage <= 1) {
		errs = append(errs, fmt.Errorf("kvUsage: is %v, and must lie between 0 and 1", b.KVUsage))
	} else if !(b.KVRelease >= 0 && b.KVRelease <= b.KVUsage) {
		errs = append(errs, fmt.Errorf("kvRelease: is %v, and must lie between 0 and kvUsage, which is %v", b.KVRelease, b.KVUsage))
	}

	switch b.Status {
	case 0, 429, DefaultBusyStatus, 529:
	default:
		errs = append(errs, fmt.Errorf("status: is %d: use 429, 503 or 529", b.Status))
	}
	return errors.Join(errs...)
}

// prefillBound is the most booked prefill tokens of a rank that is not busy; 0 is no bound.
func (b *Busy) prefillBound() int64 {
	bound := b.PrefillTokens
	if share := int64(b.PrefillShare * float64(b.MaxNumBatchedTokens)); share > 0 && (bound == 0 || share < bound) {
		bound = share
	}
	return bound
}

// isSet reports whether any bound is set.
func (b *Busy) isSet() bool { return b.prefillBound() > 0 || b.KVUsage > 0 }

func (b *Busy) status() int { return cmp.Or(b.Status, DefaultBusyStatus) }

// maxReportAge is the age up to which an engine's report of its load counts.
const maxReportAge = 5 * time.Second

// isBusy reports whether a rank is busy now.
func (r *Router) isBusy(b *Busy, rank *fleet.Rank, now time.Time) bool {
	if !b.isSet() {
		return false
	}
	booked := rank.Load.Booked()
	return r.isBusyWith(b, rank, &booked, now)
}

// isBusyWith reports whether a rank is busy with this booked load.
func (r *Router) isBusyWith(b *Busy, rank *fleet.Rank, booked *fleet.Amount, now time.Time) bool {
	if bound := b.prefillBound(); bound > 0 && booked.PrefillTokens > bound {
		return true
	}
	return b.KVUsage > 0 && r.latches.update(b, rank, booked, now)
}

// kvUsage is the larger of the engine's report and the booked share of a rank's cache.
func kvUsage(rank *fleet.Rank, booked *fleet.Amount, now time.Time) float64 {
	used := 0.0
	if blocks := rank.Worker.Blocks; blocks > 0 {
		used = float64(booked.DecodeBlocks) / float64(blocks)
	}
	if report, ok := rank.Load.LastReport(); ok && now.Sub(report.At) <= maxReportAge {
		used = max(used, report.KVUsage)
	}
	return used
}

// latches remember which ranks are busy by the usage of their caches, so that a rank at its threshold
// does not turn busy and free with every request.
//
//	usage                          free rank   busy rank
//	above KVUsage                  busy        busy
//	from KVRelease to KVUsage      free        busy
//	below KVRelease                free        free
type latches struct {
	mu   sync.Mutex                     // held to grow bits
	bits atomic.Pointer[[]*atomic.Bool] // by RankID; the slice never changes once stored
}

// update sets the latch of a rank by its usage now, and returns whether the rank is busy.
func (l *latches) update(b *Busy, rank *fleet.Rank, booked *fleet.Amount, now time.Time) bool {
	bit, used := l.of(rank.ID), kvUsage(rank, booked, now)
	release := cmp.Or(b.KVRelease, DefaultKVRelease*b.KVUsage)
	switch {
	case used > b.KVUsage:
		bit.Store(true)
	case used < release:
		bit.Store(false)
	}
	return bit.Load() && used >= release // another decision may have set the latch meanwhile
}

// of returns the latch of a rank. It makes missing latches up to this rank.
func (l *latches) of(id fleet.RankID) *atomic.Bool {
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
