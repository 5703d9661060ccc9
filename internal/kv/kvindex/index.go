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
	// MaxBytes bounds everything the index holds; default 256 MiB, which is room for about
	// 5 million (block, rank) pairs. Raising it remembers more.
	MaxBytes int64
	// MaxOrphans bounds the blocks of one rank that wait for their parent; default 16,384.
	// The oldest give way.
	MaxOrphans int
	// MaxPredicted bounds the predicted blocks of one rank; default 65,536. Those that expire
	// first give way.
	MaxPredicted int
}

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

	holders atomic.Pointer[[]*rank] // by holder number; nil where dead
	byID    atomic.Pointer[[]*rank] // by RankID; nil where unknown

	mu    sync.Mutex // guards writes to holders and byID, and below
	free  []uint32   // holder numbers that may be used again, oldest first
	grave []*rank    // dropped and not yet reaped

	reaping sync.Mutex // one reaper at a time
	hand    hand

	nextExpiry atomic.Int64
	evicted    atomic.Uint64
	unknown    atomic.Uint64
}

// New returns an empty index.
func New(cfg Config) *Index {
	cfg = cfg.withDefaults()
	x := &Index{cfg: cfg, budget: budget{max: cfg.MaxBytes}}
	x.clock.granule = max(16, uint64(cfg.MaxBytes)/48/64)
	x.nodes.budget, x.nodes.sets, x.sets.budget = &x.budget, &x.sets, &x.budget
	for i := range x.sets.shards {
		x.sets.shards[i].byHash = map[uint64]*set{}
	}
	x.nextExpiry.Store(never)
	x.holders.Store(&[]*rank{})
	x.byID.Store(&[]*rank{})
	return x
}

// known returns the living state of a rank, or nil.
func (x *Index) known(id fleet.RankID) *rank {
	if byID := *x.byID.Load(); int(id) < len(byID) {
		return byID[id]
	}
	return nil
}

// rank returns the living state of a rank; it makes one where there is none.
func (x *Index) rank(id fleet.RankID) *rank {
	if r := x.known(id); r != nil {
		return r
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if r := x.known(id); r != nil {
		return r
	}
	r := x.newRankLocked(id)
	x.holders.Store(with(*x.holders.Load(), int(r.holder), r))
	x.byID.Store(with(*x.byID.Load(), int(id), r))
	return r
}

// newRankLocked makes a rank with a holder number of its own.
func (x *Index) newRankLocked(id fleet.RankID) *rank {
	r := &rank{id: id}
	// A holder number waits long before it is used again: a lookup that began before the drop
	// still takes it for the old rank.
	if len(x.free) > 1024 {
		r.holder, x.free = x.free[0], x.free[1:]
	} else {
		r.holder = uint32(len(*x.holders.Load()))
	}
	return r
}

// with returns a copy of list with r at i.
func with(list []*rank, i int, r *rank) *[]*rank {
	grown := make([]*rank, max(len(list), i+1))
	copy(grown, list)
	grown[i] = r
	return &grown
}

// Drop forgets everything about a rank, predictions included. It takes the time of a
// pointer swap, whatever the rank held; the memory comes back with the next writes.
func (x *Index) Drop(id fleet.RankID) {
	x.mu.Lock()
	r := x.known(id)
	if r != nil {
		x.holders.Store(with(*x.holders.Load(), int(r.holder), nil))
		x.byID.Store(with(*x.byID.Load(), int(id), nil))
		x.grave = append(x.grave, r)
	}
	x.mu.Unlock()
	if r != nil {
		// A store that holds the lock finishes first: its blocks are dead already.
		r.mu.Lock()
		r.dead = true
		r.mu.Unlock()
	}
}

// Clear is told that the rank's engine forgot everything on all tiers. Predictions go too.
func (x *Index) Clear(id fleet.RankID) { x.Drop(id) }

// reap takes up to n blocks of dropped ranks out of their nodes.
func (x *Index) reap(n int) {
	if !x.reaping.TryLock() {
		return
	}
	defer x.reaping.Unlock()
	for n > 0 {
		x.mu.Lock()
		var r *rank
		if len(x.grave) > 0 {
			r = x.grave[0]
		}
		x.mu.Unlock()
		if r == nil {
			return
		}
		r.mu.Lock()
		r.dead = true // Drop says so too, but we may be here before it
		n = x.bury(r, n)
		buried := r.interred
		r.mu.Unlock()
		if !buried {
			return
		}
		x.mu.Lock()
		x.grave = x.grave[1:]
		x.free = append(x.free, r.holder)
		x.mu.Unlock()
	}
}
