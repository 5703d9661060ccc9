package pick

import (
	"hash/maphash"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unique"

	"github.com/stator-project/stator/internal/fleet"
)

// Reason is why a booking ended.
type Reason uint8

// The reasons. A booking does not expire by age, because a request may run for hours.
const (
	Finished   Reason = iota // its end was reported, and the picked worker served it, as far as is known
	Replaced                 // a new booking was made under the same id
	SourceGone               // the access log of the Envoy that carried it has stayed closed
	Reconciled               // its engine has reported an empty batch and queue since
	RankGone                 // its rank's epoch has ended
	Moved                    // its end was reported, and another worker than the picked one served it
	Failed                   // its end was reported, and no worker gave a good answer
	Stopped                  // it was a speculative prefill, and the router has stopped it

	// Reasons is the number of reasons.
	Reasons = 8
)

var reasonNames = [Reasons]string{"finished", "replaced", "source_gone", "reconciled", "rank_gone", "moved", "failed", "stopped"}

func (r Reason) String() string {
	if int(r) < len(reasonNames) {
		return reasonNames[r]
	}
	return "unknown"
}

// Booking is the load that one request puts on one rank.
//
// Its size is 128 bytes, the largest element that a map stores in place. A larger one would be allocated
// for each request.
//
//	event                           state before      state after       effect on the rank's load
//	Start, Force                    -                 prefill           its Amount is added
//	prefill seen to be computed     prefill           decode            the prefill part is taken off; Prefilled
//	prefill supposed to be done     prefill           decode, unproven  the prefill part is taken off
//	prefill seen to be computed     decode, unproven  decode            none; Prefilled
//	End and its like                any               -                 the rest is taken off; Served if Finished
type Booking struct {
	Rank fleet.Rank
	// Amount is the booking's load now. The end of its prefill takes the prefill part out of it.
	Amount fleet.Amount
	// Last is the sequence hash of the prompt's last complete block. When the rank's events report it, the
	// prompt is computed. It is 0 if there is no such block, if the request has several prompts, if the rank
	// had the block before, and once it was reported.
	Last uint64
	// Caller is who sent the request. Many bookings have the same.
	Caller unique.Handle[Caller]
	At     time.Time
	Tokens
	// FirstToken is the time from At until the first token was expected, or came.
	FirstToken Micros
}

// Caller describes who sent a request.
type Caller struct {
	// Source names the Envoy that carries the request, and Account the client's tenant by Envoy's authentication.
	Source, Account string
	// Stream means that the client asked for an answer in pieces.
	Stream bool
}

// Tokens are counts of the tokens of a request's prompt.
type Tokens struct {
	Prompt int32
	// Cached is the number of them that the choice took for cached. Certain is the number of these on the rank's device: its engine may
	// compute the others if that is faster.
	Cached, Certain int32
	// Outside is the number of them that the rank was expected to load from caches outside engines, if all are of one tier, OutsideTier.
	Outside     int32
	OutsideTier fleet.Tier
	// Held is no count, and lies here because a booking must stay small. It means that the engine was expected to begin the prompt when
	// another request has ended: no slot was free, or the cache had no room.
	Held bool
}

// Micros is a time in microseconds, which takes less room than a time.Duration. Times of more than 71 minutes are that.
type Micros uint32

// InMicros returns a time in microseconds.
func InMicros(d time.Duration) Micros { return Micros(min(max(d.Microseconds(), 0), math.MaxUint32)) }

// Duration returns the time.
func (m Micros) Duration() time.Duration { return time.Duration(m) * time.Microsecond }

const shards = 64

// BookingsConfig is read by NewBookings and must not change later. The functions must be quick, and must
// not call back into the table.
type BookingsConfig struct {
	// Limit bounds the bookings that have not ended; default 1,048,576. A request beyond it is routed and
	// not counted.
	Limit int
	// Served receives each booking that ended as Finished: its Rank, At and Tokens. May be nil.
	Served func(rank fleet.Rank, at time.Time, t Tokens)
	// Prefilled receives each prefill that ended, if it is certain how long its rank worked on it. May be
	// nil.
	Prefilled func(k *Booking, p fleet.Ended)
	// Gone receives the id of each booking that has ended, whatever the reason. May be nil.
	Gone func(id string)
}

// Bookings is the table of all bookings that have not ended. Create it with [NewBookings].
//
// Invariant: the booked figures of every rank's Load are the sums over this table, except within a method.
//
// Locks, in the order in which they are taken: the lock of the rank's stripe (ranks), then the lock of the booking's shard. Only Start
// and Force hold both.
type Bookings struct {
	cfg    BookingsConfig
	seed   maphash.Seed
	count  atomic.Int64
	ended  [Reasons]atomic.Uint64
	lost   atomic.Uint64 // bookings that Start refused
	full   atomic.Uint64 // requests that found the table full
	shards [shards]shard
	// ranks has a lock for each stripe of RankIDs. It makes the check of a rank's load and the addition to it
	// one step.
	ranks [shards]sync.Mutex
}

type shard struct {
	mu   sync.Mutex
	byID map[string]Booking // guarded by mu
	// early has the hashes of the last ids whose end found no booking, and next the place of the next one. Both are
	// guarded by mu. See endedEarly.
	early [earlyEnds]uint64
	next  int
	_     [40]byte // keeps two shards off one cache line
}

// earlyEnds is the number of ends without a booking that a shard remembers: 1,024 in all shards. An end comes at
// most some milliseconds before its booking, and few ends come in that time.
const earlyEnds = 16

// endedEarly reports whether the end of this id was reported already. Envoy logs a request that its client cancels
// before it resets the stream on which the decision is being made. The entry may arrive before the booking is made,
// and the reset after it was made; then nothing else would end that booking.
func (s *shard) endedEarly(hash uint64) bool { return slices.Contains(s.early[:], hash) }

// rememberEnd records that the end of an id came, and that there was no booking.
func (s *shard) rememberEnd(hash uint64) {
	s.early[s.next] = hash
	s.next = (s.next + 1) % earlyEnds
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

func (b *Bookings) shard(id string) *shard { return b.shardOf(b.hash(id)) }

func (b *Bookings) hash(id string) uint64 { return maphash.String(b.seed, id) }

func (b *Bookings) shardOf(hash uint64) *shard { return &b.shards[hash%shards] }

// Start books k under id if the load of its rank still equals seen, and reports whether it did. After
// false the caller reads the loads again and chooses again.
//
// Only the chosen rank's load is checked. Load that other ranks have gained since then makes this choice
// better. Load that they have lost was still there when the choice was made.
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

// Force books k under id whatever the load, for a caller that Start has refused too often.
func (b *Bookings) Force(id string, k Booking) {
	mu := &b.ranks[int(k.Rank.ID)%shards]
	mu.Lock()
	defer mu.Unlock()
	b.insert(id, k)
}

// insert adds the booking to the table and to the load, unless its end has come already. A full table books
// nothing; the request goes on without being counted. The lock of the rank's stripe is held.
func (b *Bookings) insert(id string, k Booking) {
	hash := b.hash(id)
	s := b.shardOf(hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.endedEarly(hash) {
		b.ended[Finished].Add(1)
		return
	}
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
		k.Rank.Load.PrefillBegins(k.Held, k.At)
	}
	k.Rank.Load.Add(k.Amount, k.At)
}

// endLocked takes k out of the table and its load off the rank. s.mu is held, so no booking ends twice.
func (b *Bookings) endLocked(s *shard, id string, k Booking, why Reason) {
	delete(s.byID, id)
	k.Rank.Load.Add(k.Amount.Negative(), k.At)
	b.count.Add(-1)
	b.ended[why].Add(1)
	if why == Finished {
		k.Rank.Load.Served(k.At)
		if b.cfg.Served != nil {
			b.cfg.Served(k.Rank, k.At, k.Tokens)
		}
	}
	if b.cfg.Gone != nil {
		b.cfg.Gone(id)
	}
}

// EndAs ends the booking for the reason that why returns for its rank, and returns the booking. False means
// that there is none under id (any more, or yet: one that is made soon afterwards is not counted). why must be
// quick, and must not call back into the table.
func (b *Bookings) EndAs(id string, why func(fleet.Rank) Reason) (k Booking, ok bool) {
	hash := b.hash(id)
	s := b.shardOf(hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	k, ok = s.byID[id]
	if !ok {
		s.rememberEnd(hash)
		return k, false
	}
	b.endLocked(s, id, k, why(k.Rank))
	return k, true
}

// Get returns the booking under id, which may end at any time. False means that there is none.
func (b *Bookings) Get(id string) (Booking, bool) {
	s := b.shard(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	k, ok := s.byID[id]
	return k, ok
}

// EndIf ends every booking that match accepts, and returns how many there were. match must not call back
// into the table.
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

// EndBefore ends the bookings that match accepts and that began before t: the bookings of an Envoy
// whose access-log stream has stayed closed. It returns how many there were.
func (b *Bookings) EndBefore(match func(k *Booking) bool, t time.Time) int {
	return b.EndIf(SourceGone, func(_ string, k *Booking) bool { return k.At.Before(t) && match(k) })
}

// Reconcile ends bookings by an engine's report that requests run or wait there. If there are none, every
// booking on the rank that is older than grace ends, unless its first token is expected later: its end was missed. A busy
// engine's report shows nothing about single bookings. For a rank without bookings the table is not searched: an idle engine reports every
// second, and the table has the bookings of all others.
func (b *Bookings) Reconcile(rank fleet.Rank, reported int, at time.Time, grace time.Duration) int {
	if reported > 0 || rank.Load.Own().Requests <= 0 {
		return 0
	}
	return b.EndIf(Reconciled, func(_ string, k *Booking) bool {
		return k.Rank.ID == rank.ID && at.Sub(k.At) > max(grace, k.FirstToken.Duration())
	})
}

// Len is the number of bookings that have not ended.
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
