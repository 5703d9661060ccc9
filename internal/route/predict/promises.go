package predict

import (
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stator-project/stator/internal/kv/blockhash"
)

// promises remembers, for each booked request, the blocks that were predicted on its rank. When the request
// ends on another rank, or on none, the prediction is taken back. It lies beside the bookings, because a
// booking must stay small.
//
// Invariant: a promise has a booking, except between the two steps of make and within drop.
type promises struct {
	seed   maphash.Seed
	bytes  atomic.Int64  // of all promises, spare ones included
	lost   atomic.Uint64 // requests that found no room
	shards [promiseShards]promiseShard
}

type promiseShard struct {
	mu    sync.Mutex
	byID  map[string]*Promise // guarded by mu
	spare *Promise            // guarded by mu; a list
	n     int                 // guarded by mu; the length of spare
}

// Promise is the prediction about one request: see [Prediction].
type Promise struct {
	Chain    []blockhash.Sequence
	known    int
	computed time.Time
	Session  uint64   // see learned.SessionHash
	next     *Promise // the next spare one
}

const (
	promiseShards = 64
	// maxPromised bounds the bytes of all promises: 4 million blocks of requests in flight. Beyond it a
	// request's prediction ends by its time alone.
	maxPromised = 32 << 20
	// spareBlocks is the room of the largest promise whose memory is used again, and sparePromises how many a
	// shard keeps.
	spareBlocks, sparePromises = 4096, 4
)

func (p *promises) init() {
	p.seed = maphash.MakeSeed()
	for i := range p.shards {
		p.shards[i].byID = map[string]*Promise{}
	}
}

func (p *promises) shard(id string) *promiseShard {
	return &p.shards[maphash.String(p.seed, id)%promiseShards]
}

// make remembers the blocks of a request, unless there is no room.
func (p *promises) make(id string, session uint64, chain []blockhash.Sequence, known int, computed time.Time) {
	if p.bytes.Load()+8*int64(len(chain)) > maxPromised {
		p.lost.Add(1)
		return
	}

	s := p.shard(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	made := s.spare
	if made != nil {
		s.spare = made.next
		s.n--
	} else {
		made = &Promise{}
	}
	before := cap(made.Chain)
	*made = Promise{Chain: append(made.Chain[:0], chain...), known: known, computed: computed, Session: session}
	p.bytes.Add(8 * int64(cap(made.Chain)-before))
	s.byID[id] = made
}

// take removes a request's promise and returns it; nil for none. The caller must recycle it.
func (p *promises) take(id string) *Promise {
	s := p.shard(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	made := s.byID[id]
	delete(s.byID, id)
	return made
}

// recycle keeps the memory of a promise for another request with an id of the same shard. It accepts nil.
func (p *promises) recycle(id string, made *Promise) {
	if made == nil {
		return
	}
	s := p.shard(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.n == sparePromises || cap(made.Chain) > spareBlocks {
		p.bytes.Add(-8 * int64(cap(made.Chain)))
		return
	}
	made.next = s.spare
	s.spare = made
	s.n++
}

// drop forgets a request's promise.
func (p *promises) drop(id string) { p.recycle(id, p.take(id)) }

// len returns the number of promises.
func (p *promises) len() (n int) {
	for i := range p.shards {
		s := &p.shards[i]
		s.mu.Lock()
		n += len(s.byID)
		s.mu.Unlock()
	}
	return n
}
