package kvindex

import (
	"sync"
	"sync/atomic"

	"github.com/stator-project/stator/internal/fleet"
)

// DefaultMaxBytes is the bound of an index that sets none.
const DefaultMaxBytes = 256 << 20

// Config bounds an index. It is read by New and not changed later.
type Config struct {
	// MaxBytes bounds all memory of the index; default DefaultMaxBytes, which is room for about 5 million
	// (block, rank) pairs. A higher bound evicts less.
	MaxBytes int64
	// MaxOrphans bounds the blocks of one rank that wait for their parent; default 16,384. Beyond it the
	// oldest are dropped.
	MaxOrphans int
	// MaxPredicted bounds the predicted blocks of one rank; default 65,536. Beyond it the predictions
	// that expire first are dropped.
	MaxPredicted int
}

// withDefaults fills in the defaults of the fields that are not set.
func (c Config) withDefaults() Config {
	if c.MaxBytes <= 0 {
		c.MaxBytes = DefaultMaxBytes
	}
	if c.MaxOrphans <= 0 {
		c.MaxOrphans = 1 << 14
	}
	if c.MaxPredicted <= 0 {
		c.MaxPredicted = 1 << 16
	}
	return c
}

// Index is the cache index. Create it with [New].
type Index struct {
	cfg    Config
	budget budget
	nodes  nodes
	sets   sets
	clock  ages

	// holders and byID find ranks. The slices never change once stored, so that lookups need no lock. A rank
	// that is being loaded has a holder number and is in neither.
	holders atomic.Pointer[[]*rank] // by holder number; nil for a dropped rank
	byID    atomic.Pointer[[]*rank] // by RankID; nil for an unknown rank

	mu      sync.Mutex // guards writes to holders and byID, and the two fields below
	free    []uint32   // holder numbers that may be used again, oldest first
	dropped []*rank    // not yet reaped: their blocks are still in nodes; oldest first

	reaping sync.Mutex // held by the one goroutine that reaps
	sweeper sweeper

	nextExpiry atomic.Int64  // no prediction ends before it; unix nanoseconds
	evicted    atomic.Uint64 // see Stats
	unknown    atomic.Uint64
}

// A full index has about a (block, rank) pair for each pairBytes, and ages by ticksPerIndex ticks while it is
// replaced once.
const (
	pairBytes     = 48
	ticksPerIndex = 64
)

// New returns an empty index.
func New(cfg Config) *Index {
	cfg = cfg.withDefaults()
	x := &Index{cfg: cfg, budget: budget{max: cfg.MaxBytes}}
	x.clock.granule = max(16, uint64(cfg.MaxBytes)/pairBytes/ticksPerIndex)
	x.nodes.budget, x.nodes.sets = &x.budget, &x.sets
	x.sets.budget = &x.budget
	for i := range x.sets.shards {
		x.sets.shards[i].byHash = map[uint64]*set{}
	}
	x.nextExpiry.Store(never)
	x.holders.Store(&[]*rank{})
	x.byID.Store(&[]*rank{})
	return x
}

// lookupRank returns the state of a rank that is known and not dropped, or nil.
func (x *Index) lookupRank(id fleet.RankID) *rank {
	if byID := *x.byID.Load(); int(id) < len(byID) {
		return byID[id]
	}
	return nil
}

// rank returns the state of a rank, and makes it if there is none.
func (x *Index) rank(id fleet.RankID) *rank {
	if r := x.lookupRank(id); r != nil {
		return r
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if r := x.lookupRank(id); r != nil {
		return r
	}
	r := x.newRankLocked(id)
	x.holders.Store(with(*x.holders.Load(), int(r.holder), r))
	x.byID.Store(with(*x.byID.Load(), int(id), r))
	return r
}

// newRankLocked makes a rank with a holder number that no other rank has.
func (x *Index) newRankLocked(id fleet.RankID) *rank {
	r := &rank{id: id}
	// A free number is used again only after many others. A lookup that began before the drop may still map
	// it to the old rank, and would attribute the new rank's blocks to it.
	if len(x.free) > minFreeHolders {
		r.holder, x.free = x.free[0], x.free[1:]
	} else {
		r.holder = uint32(len(*x.holders.Load()))
	}
	return r
}

// minFreeHolders is the number of holder numbers that stay free before the oldest is used again.
const minFreeHolders = 1024

// with returns a copy of list with r at i.
func with(list []*rank, i int, r *rank) *[]*rank {
	grown := make([]*rank, max(len(list), i+1))
	copy(grown, list)
	grown[i] = r
	return &grown
}

// Drop drops all state of a rank, predictions included. It costs two pointer swaps, whatever the rank held.
// Its memory is freed by reap during the next writes.
func (x *Index) Drop(id fleet.RankID) {
	x.mu.Lock()
	r := x.lookupRank(id)
	if r != nil {
		x.holders.Store(with(*x.holders.Load(), int(r.holder), nil))
		x.byID.Store(with(*x.byID.Load(), int(id), nil))
		x.dropped = append(x.dropped, r)
	}
	x.mu.Unlock()
	if r != nil {
		// A store that holds the lock finishes first. Lookups do not see its blocks any more.
		r.mu.Lock()
		r.dead = true
		r.mu.Unlock()
	}
}

// Clear drops all state of a rank because its engine has cleared its cache on all tiers. Predictions are
// dropped too.
func (x *Index) Clear(id fleet.RankID) { x.Drop(id) }

// reap takes up to n blocks of dropped ranks out of their nodes. Writers call it with a few blocks for each
// block that they write, so that no writer pays for a whole rank. Only one goroutine reaps at a time; the
// others go on.
func (x *Index) reap(n int) {
	if !x.reaping.TryLock() {
		return
	}
	defer x.reaping.Unlock()
	for n > 0 {
		x.mu.Lock()
		var r *rank
		if len(x.dropped) > 0 {
			r = x.dropped[0]
		}
		x.mu.Unlock()
		if r == nil {
			return
		}

		r.mu.Lock()
		r.dead = true // Drop sets it too, but may not have come so far
		n = x.reapRank(r, n)
		isEmpty := r.reaped
		r.mu.Unlock()
		if !isEmpty {
			return
		}

		x.mu.Lock()
		x.dropped = x.dropped[1:]
		x.free = append(x.free, r.holder)
		x.mu.Unlock()
	}
}
