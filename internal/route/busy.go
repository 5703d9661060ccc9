package route

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stator-project/stator/internal/fleet"
)

// Busy says when a rank takes no more requests. The zero Busy is never: engines have queues of
// their own. What is in a rank's own queue cannot be moved any more and cannot be overtaken by
// what is more urgent, so thresholds are for those who want classes, deadlines and fairness to mean
// something.
type Busy struct {
	// PrefillTokens is how many tokens of prompts that are not computed yet a rank may have; one with
	// more is busy. 0 is no bound.
	PrefillTokens int64
	// PrefillShare bounds the same as a share of BatchTokens, the engine's max_num_batched_tokens; 0
	// is no bound, and so is a BatchTokens of 0, which is unknown.
	PrefillShare float64
	BatchTokens  int64
	// KVUsage is the share of its KV cache that a rank may have in use, by its own report or by what
	// is booked there: with more it is busy until both are below KVRelease. 0 is no bound. KVRelease
	// 0 means nine tenths of KVUsage.
	KVUsage, KVRelease float64
	// Status is what a refusal for this reason has: 429, 503 (default) or 529.
	Status int
}

// Validate reports everything that is wrong.
func (b *Busy) Validate() error {
	var errs []error
	if b.PrefillTokens < 0 || b.BatchTokens < 0 || !(b.PrefillShare >= 0) {
		errs = append(errs, errors.New("busy: the bounds on prefill must not be negative"))
	}
	if !(b.KVUsage >= 0 && b.KVUsage <= 1) || !(b.KVRelease >= 0 && b.KVRelease <= b.KVUsage) {
		errs = append(errs, fmt.Errorf("busy: KV usage %v and its release %v must lie between 0 and 1, the release not above the usage", b.KVUsage, b.KVRelease))
	}
	switch b.Status {
	case 0, 429, 503, 529:
	default:
		errs = append(errs, fmt.Errorf("busy: the status is %d: use 429, 503 or 529", b.Status))
	}
	return errors.Join(errs...)
}

// prefillBound is the most prefill tokens a rank may have; 0 is no bound.
func (b *Busy) prefillBound() int64 {
	bound := b.PrefillTokens
	if share := int64(b.PrefillShare * float64(b.BatchTokens)); share > 0 && (bound == 0 || share < bound) {
		bound = share
	}
	return bound
}

// bounds says whether there are any.
func (b *Busy) bounds() bool { return b.prefillBound() > 0 || b.KVUsage > 0 }

func (b *Busy) status() int {
	if b.Status == 0 {
		return 503
	}
	return b.Status
}

// reportAge is how old an engine's word of its load may be and still count.
const reportAge = 5 * time.Second

// full says whether a rank is busy now.
func (r *Router) full(b *Busy, rank *fleet.Rank, now time.Time) bool {
	if !b.bounds() {
		return false
	}
	booked := rank.Load.Booked()
	return r.fullWith(b, rank, &booked, now)
}

// fullWith says whether a rank is busy with what is booked there.
func (r *Router) fullWith(b *Busy, rank *fleet.Rank, booked *fleet.Amount, now time.Time) bool {
	bound := b.prefillBound()
	return bound > 0 && booked.PrefillTokens > bound || b.KVUsage > 0 && r.latches.full(b, rank, booked, now)
}

// usage is the larger of what the engine reports to be in use and what is booked.
func usage(rank *fleet.Rank, booked *fleet.Amount, now time.Time) float64 {
	used := 0.0
	if blocks := rank.Worker.Blocks; blocks > 0 {
		used = float64(booked.DecodeBlocks) / float64(blocks)
	}
	if report, ok := rank.Load.Reported(); ok && now.Sub(report.At) <= reportAge {
		used = max(used, report.KVUsage)
	}
	return used
}

// latches remember which ranks have been too full and are not yet empty enough, so that a rank at
// its threshold does not turn busy and free with every request.
type latches struct {
	mu   sync.Mutex
	bits atomic.Pointer[[]*atomic.Bool] // by RankID; never changed once stored
}

func (l *latches) full(b *Busy, rank *fleet.Rank, booked *fleet.Amount, now time.Time) bool {
	bit, used, release := l.of(rank.ID), usage(rank, booked, now), b.KVRelease
	if release == 0 {
		release = 0.9 * b.KVUsage
	}
	switch {
	case used > b.KVUsage:
		bit.Store(true)
	case used < release:
		bit.Store(false)
	}
	return bit.Load() && used >= release
}

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

// gone forgets a rank: its number will be another's.
func (l *latches) gone(id fleet.RankID) {
	if have := l.bits.Load(); have != nil && int(id) < len(*have) {
		(*have)[id].Store(false)
	}
}
