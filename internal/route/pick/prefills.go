package pick

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/stator-project/stator/internal/fleet"
)

// PrefillDone ends a booking's prefill, because its answer has begun. False means that there is no booking
// under id, or that its prefill had ended already.
func (b *Bookings) PrefillDone(id string, now time.Time) bool {
	return b.endPrefill(id, Computed, now, now)
}

// Handed records that the worker of a booking receives its prompt at now, from the worker that has computed it. The first token
// is then expected after the time that transfer returns. False means that there is no booking under id (any more).
func (b *Bookings) Handed(id string, now time.Time, transfer func(k *Booking) time.Duration) (k Booking, ok bool) {
	s := b.shard(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	k, ok = s.byID[id]
	if !ok {
		return k, false
	}
	requests := fleet.Amount{Requests: k.Amount.Requests}
	k.Rank.Load.Add(requests.Negative(), k.At)
	k.Rank.Load.Add(requests, now)
	k.At = now
	k.FirstToken = InMicros(transfer(&k))
	s.byID[id] = k
	return k, true
}

// endPrefill takes the prefill off a booking that has some. If it was computed, at ended, the time that it
// took is passed to Prefilled.
func (b *Bookings) endPrefill(id string, progress Progress, ended, now time.Time) bool {
	s := b.shard(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	k, ok := s.byID[id]
	if !ok {
		return false
	}

	load, had := k.Rank.Load, k.Amount.PrefillTokens > 0
	if had {
		load.PrefillEnds(k.Amount.Prefill(), progress == Computed, now)
		k.Amount.PrefillTokens, k.Amount.PrefillTime = 0, 0
	}
	if progress == Computed && (had || k.Last != 0) {
		k.Last = 0
		k.FirstToken = InMicros(ended.Sub(k.At))
		if ended.After(k.At) { // else another request computed the same prompt before this one came
			p := load.PrefillObserved(k.At, ended)
			if b.cfg.Prefilled != nil && p.Sure {
				b.cfg.Prefilled(&k, p)
			}
		}
	}
	s.byID[id] = k
	return had
}

// Progress is the progress of a prefill.
type Progress uint8

// The three kinds of progress.
const (
	Pending  Progress = iota // it waits or runs
	Computed                 // it is done, as events show
	Supposed                 // it should be done; nothing is learned from it, unless events show its end later
)

// Settle ends the prefills that are done by now, in the order of their bookings, and returns how many there
// were. progress is called for every booking whose prefill no event has shown to be done. It returns also
// when a computed one ended, and must not call back into the table.
func (b *Bookings) Settle(progress func(k *Booking) (p Progress, ended time.Time), now time.Time) int {
	var done []settled
	for i := range b.shards {
		s := &b.shards[i]
		s.mu.Lock()
		for id, k := range s.byID {
			if k.Amount.PrefillTokens == 0 && k.Last == 0 {
				continue
			}
			p, ended := progress(&k)
			if p == Computed || p == Supposed && k.Amount.PrefillTokens > 0 {
				done = append(done, settled{id, p, k.At, ended})
			}
		}
		s.mu.Unlock()
	}

	// Shards are walked in no particular order, and the time of a prefill counts from the end of the one before.
	slices.SortFunc(done, func(a, b settled) int { return cmp.Or(a.at.Compare(b.at), strings.Compare(a.id, b.id)) })
	n := 0
	for _, d := range done {
		if b.endPrefill(d.id, d.progress, d.ended, now) {
			n++
		}
	}
	return n
}

// SettleOne ends the prefill of one booking if it is computed by now, like Settle. Call it before the booking
// ends: a short request may end before the next call of Settle, and the time of its prompt would be lost.
// computed is called with the booking's rank and Last, where events have not shown Last yet, and returns when
// the prompt was computed.
func (b *Bookings) SettleOne(id string, computed func(rank fleet.Rank, last uint64) (ended time.Time, ok bool), now time.Time) {
	s := b.shard(id)
	s.mu.Lock()
	k := s.byID[id]
	s.mu.Unlock()
	if k.Last == 0 {
		return // or there is no such booking
	}
	if ended, ok := computed(k.Rank, k.Last); ok {
		b.endPrefill(id, Computed, ended, now)
	}
}

// settled is a booking whose prefill is done.
type settled struct {
	id        string
	progress  Progress
	at, ended time.Time
}
