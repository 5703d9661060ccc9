package pick

import (
	"cmp"
	"hash/maphash"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stator-project/stator/internal/fleet"
)

// Reason says why a booking ended.
type Reason uint8

// The reasons. There is no expiry by age: a request may legitimately run for hours.
const (
	Finished   Reason = iota // its end was reported: an access-log entry
	Replaced                 // a new booking came under the same id
	SourceGone               // the Envoy that carried it fell silent
	Reconciled               // the engine reported an empty batch and queue since
	RankGone                 // its rank's epoch ended

	// Reasons is how many there are.
	Reasons = 5
)

var reasonNames = [Reasons]string{"finished", "replaced", "source_gone", "reconciled", "rank_gone"}

func (r Reason) String() string {
	if int(r) < len(reasonNames) {
		return reasonNames[r]
	}
	return "unknown"
}

// Booking is the load that one request puts on one rank. It has 128 bytes, the most that a map
// keeps without a memory of its own for each.
type Booking struct {
	Rank fleet.Rank
	// Amount is what the booking weighs now: PrefillDone takes the prefill out of it.
	Amount fleet.Amount
	// Last is the sequence hash of the prompt's last complete block, which tells when the
	// rank has computed the prompt; 0 where there is none, or it held that block before, or once
	// it has told.
	Last uint64
	// Source names the Envoy that carries the request.
	Source string
	At     time.Time
	// Prompt is the prompt's tokens, and Cached those that the choice took for cached.
	Prompt, Cached int32
	// FirstToken is how long after At the first token was expected.
	FirstToken time.Duration
}

const shards = 64

// BookingsConfig is read by NewBookings and must not change later. The functions must be quick, and must
// not call back into the table.
type BookingsConfig struct {
	// Limit bounds the bookings that have not ended; default 1,048,576. A request beyond it is routed and
	// not counted.
	Limit int
	// Served receives each booking that ended as Finished: its Rank, At, Prompt and Cached. May be nil.
	Served func(rank fleet.Rank, at time.Time, prompt, cached int)
	// Prefilled receives each prefill that ended, where it is certain how long its rank worked on it. May
	// be nil.
	Prefilled func(k *Booking, p fleet.Ended)
}

// Bookings is the table of all bookings that have not ended. Create it with [NewBookings].
//
// Invariant: the booked figures of every rank's Load are the sums over this table, except
// between two lines of one method.
type Bookings struct {
	cfg    BookingsConfig
	seed   maphash.Seed
	count  atomic.Int64
	ended  [Reasons]atomic.Uint64
	lost   atomic.Uint64 // races
	full   atomic.Uint64
	shards [shards]shard
	// ranks serialises bookings on one rank, by RankID: the check of the load and the
	// addition to it must be one step.
	ranks [shards]sync.Mutex
}

type shard struct {
	mu   sync.Mutex
	byID map[string]Booking // guarded by mu
	_    [40]byte           // keep neighbours off this cache line
}

// NewBookings returns an empty table.
func NewBookings(cfg BookingsConfig) *Bookings {
	if cfg.Limit <= 0 {
		cfg.Limit = 1 << 20
	}
	b := &Bookings{cfg: cfg, seed: maphash.MakeSeed()}
	for i := range b.shards {
		b.shards[i].byID = map[string]Booking{}
	}
	return b
}

func (b *Bookings) shard(id string) *shard {
	return &b.shards[maphash.String(b.seed, id)%shards]
}

// Start books k under id if the rank's load is still seen, and reports whether it did. A
// caller that gets false reads the loads again and chooses again.
//
// Only the chosen rank is checked: load that others have gained meanwhile makes this choice
// better, not worse, and load they have lost was not there to be seen.
func (b *Bookings) Start(id string, k Booking, seen fleet.Amount) bool {
	mu := &b.ranks[int(k.Rank.ID)%shards]
	mu.Lock()
	defer mu.Unlock()
	if k.Rank.Load.Booked() != seen {
		b.lost.Add(1)
		return false
	}
	b.insert(id, k)
	return true
}

// Force books k under id whatever the load. For callers that lost too many races.
func (b *Bookings) Force(id string, k Booking) {
	mu := &b.ranks[int(k.Rank.ID)%shards]
	mu.Lock()
	defer mu.Unlock()
	b.insert(id, k)
}

// insert adds the booking to the table and to the load. A full table books nothing: the
// request goes on, uncounted.
func (b *Bookings) insert(id string, k Booking) {
	s := b.shard(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if old, ok := s.byID[id]; ok {
		b.endLocked(s, id, old, Replaced)
	}
	if b.count.Add(1) > int64(b.cfg.Limit) {
		b.count.Add(-1)
		b.full.Add(1)
		return
	}
	s.byID[id] = k
	if k.Amount.PrefillTokens > 0 {
		k.Rank.Load.PrefillBegins(k.At)
	}
	k.Rank.Load.Add(k.Amount)
}

// endLocked takes k out of the table and off its rank. s.mu is held, so no booking ends twice.
func (b *Bookings) endLocked(s *shard, id string, k Booking, why Reason) {
	delete(s.byID, id)
	k.Rank.Load.Add(k.Amount.Negative())
	b.count.Add(-1)
	b.ended[why].Add(1)
	if why == Finished && b.cfg.Served != nil {
		b.cfg.Served(k.Rank, k.At, int(k.Prompt), int(k.Cached))
	}
}

// End ends the booking; false means that there is none under id (any more).
func (b *Bookings) End(id string, why Reason) bool {
	s := b.shard(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	k, ok := s.byID[id]
	if ok {
		b.endLocked(s, id, k, why)
	}
	return ok
}

// PrefillDone takes the booking's prefill tokens off its rank: the request has begun to
// answer. False means that there is no booking under id, or its prefill was done already.
func (b *Bookings) PrefillDone(id string, now time.Time) bool {
	return b.prefillDone(id, Computed, now, now)
}

// prefillDone takes the prefill off a booking that has some, and learns from one that was computed,
// which ended at a time.
func (b *Bookings) prefillDone(id string, how Progress, ended, now time.Time) bool {
	s := b.shard(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	k, ok := s.byID[id]
	if !ok {
		return false
	}
	load, had := k.Rank.Load, k.Amount.PrefillTokens > 0
	if had {
		load.Add(k.Amount.Prefill().Negative())
		load.PrefillEnds(now)
		k.Amount.PrefillTokens, k.Amount.PrefillTime = 0, 0
	}
	if how == Computed && (had || k.Last != 0) {
		k.Last = 0
		if ended.After(k.At) { // or somebody else computed it
			if p := load.Proved(k.At, ended); b.cfg.Prefilled != nil && p.Sure {
				b.cfg.Prefilled(&k, p)
			}
		}
	}
	s.byID[id] = k
	return had
}

// Progress says what is known of a prefill.
type Progress uint8

// The three there are.
const (
	Pending  Progress = iota // it waits or runs
	Computed                 // it is done, and was seen to be
	Supposed                 // it should be done: nothing is learned from it, unless it is seen later
)

// Settle looks at every booking whose prefill is not known to be done, takes it off those where it
// is, in the order in which they were made, and returns how many there were. look says when one that
// was computed ended; it must not call back into the table.
func (b *Bookings) Settle(look func(k *Booking) (how Progress, ended time.Time), now time.Time) int {
	var done []settled
	for i := range b.shards {
		s := &b.shards[i]
		s.mu.Lock()
		for id, k := range s.byID {
			if k.Amount.PrefillTokens == 0 && k.Last == 0 {
				continue
			}
			if how, ended := look(&k); how == Computed || how == Supposed && k.Amount.PrefillTokens > 0 {
				done = append(done, settled{id, how, k.At, ended})
			}
		}
		s.mu.Unlock()
	}
	slices.SortFunc(done, func(a, b settled) int { return cmp.Or(a.at.Compare(b.at), strings.Compare(a.id, b.id)) })
	n := 0
	for _, d := range done {
		if b.prefillDone(d.id, d.how, d.ended, now) {
			n++
		}
	}
	return n
}

// settled is a booking whose prefill is done.
type settled struct {
	id        string
	how       Progress
	at, ended time.Time
}

// EndIf ends every booking that match accepts and returns how many there were. match must
// not call back into the table.
func (b *Bookings) EndIf(why Reason, match func(id string, k *Booking) bool) int {
	n := 0
	for i := range b.shards {
		s := &b.shards[i]
		s.mu.Lock()
		for id, k := range s.byID {
			if match(id, &k) {
				b.endLocked(s, id, k, why)
				n++
			}
		}
		s.mu.Unlock()
	}
	return n
}

// EndBefore ends the bookings that match accepts and that began before t: those of an Envoy
// whose access-log stream has stayed closed. It returns how many there were.
func (b *Bookings) EndBefore(match func(k *Booking) bool, t time.Time) int {
	return b.EndIf(SourceGone, func(_ string, k *Booking) bool { return k.At.Before(t) && match(k) })
}

// Reconcile is told what the engine itself reports, at a time. When it reports nothing
// running and nothing waiting, every booking there that is older than grace has been
// missed, and ends. A busy engine tells nothing of any one booking.
func (b *Bookings) Reconcile(rank fleet.RankID, reported int, at time.Time, grace time.Duration) int {
	if reported > 0 {
		return 0
	}
	old := at.Add(-grace)
	return b.EndIf(Reconciled, func(_ string, k *Booking) bool { return k.Rank.ID == rank && k.At.Before(old) })
}

// Len is how many bookings have not ended.
func (b *Bookings) Len() int { return int(b.count.Load()) }

// Stats is a snapshot of the counters.
type Stats struct {
	Open  int
	Ended [Reasons]uint64 // by Reason
	// LostRaces counts choices made again because another booking came first.
	LostRaces uint64
	// Unbooked counts requests that found the table full.
	Unbooked uint64
}

// Stats returns the counters now.
func (b *Bookings) Stats() Stats {
	s := Stats{Open: b.Len(), LostRaces: b.lost.Load(), Unbooked: b.full.Load()}
	for i := range s.Ended {
		s.Ended[i] = b.ended[i].Load()
	}
	return s
}
