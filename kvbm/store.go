package kvbm

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/block"
	"github.com/stator-project/stator/kvbm/pool"
)

// Memory is the host memory of blocks, in slots of equal size.
type Memory interface {
	// Slots is the number of slots.
	Slots() int
	// Slot returns the bytes of a slot. They stay at their address.
	Slot(i int) []byte
}

// Policy decides which blocks are copied to a tier.
type Policy uint8

// The policies.
const (
	// WriteAll copies every block when it is committed.
	WriteAll Policy = iota
	// WriteReused copies a block when it was committed or found for the second time, of late.
	WriteReused
	// WriteNever copies no block. It is for tiers that others fill.
	WriteNever
)

// Tier is a tier behind host memory.
type Tier struct {
	// Name is the tier's name in its counts. Each tier of a store has another name.
	Name string
	// Tier is the kind of memory as which its changes are reported. With WriteNever none are, and it has no meaning.
	Tier fleet.Tier
	Backend
	Write Policy
}

// Config configures a store. Only Layout and Memory have no default.
type Config struct {
	Layout block.Layout
	// Memory has slots of the layout's size, which the store uses until Run has ended.
	Memory Memory
	// Tiers are the tiers behind it, the fastest first. Tiers that are written to have rising kinds of memory.
	Tiers []Tier
	// Queue bounds the blocks that wait to be copied to a tier (1,024), and Writers the blocks that are copied to it at once (4).
	Queue, Writers int
	// WriteTimeout bounds the copy of one block (10 s), and FetchTimeout a fetch (5 s).
	WriteTimeout, FetchTimeout time.Duration
	// Changed is called after blocks came to a tier or left it, with the host's as [fleet.Host]. It must not call the store.
	Changed func(tier fleet.Tier, stored bool, keys []block.Key)
	// Now returns the time (time.Now).
	Now func() time.Time
}

func (c Config) withDefaults() Config {
	set := func(d *time.Duration, to time.Duration) {
		if *d <= 0 {
			*d = to
		}
	}
	set(&c.WriteTimeout, 10*time.Second)
	set(&c.FetchTimeout, 5*time.Second)
	if c.Queue <= 0 {
		c.Queue = 1024
	}
	if c.Writers <= 0 {
		c.Writers = 4
	}
	if c.Changed == nil {
		c.Changed = func(fleet.Tier, bool, []block.Key) {}
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return c
}

// Store is the blocks of one layout on a node. Create it with [New].
//
// Invariants: a slot that is partial belongs to the caller of Reserve, or to a fetch. A key of flights is not in the pool.
type Store struct {
	cfg    Config
	tiers  []*tier
	copies bool  // whether blocks are copied to a tier
	host   speed // of engines' copies from host memory
	counts counts

	mu      sync.Mutex
	pool    *pool.Pool            // guarded by mu
	seen    *pool.Sketch          // guarded by mu
	flights map[block.Key]*flight // guarded by mu; blocks that are being fetched

	promises promises // guarded by mu
}

// tier is a slower tier, with what waits to be copied to it.
type tier struct {
	Tier
	speed  speed
	queue  chan copyJob
	counts tierCounts
	// pending counts the blocks that are in queue, or are being copied.
	pending atomic.Int64
}

// tierCounts are a store's counts for one tier.
type tierCounts struct{ copied, dropped, failed, loaded atomic.Uint64 }

// copyJob is a block to copy to a tier.
type copyJob struct {
	key      block.Key
	priority uint8
}

// counts are a store's counts, without the counts of its tiers.
type counts struct{ committed, found, fetched, refused, pinned, unpinned atomic.Uint64 }

// New returns a store without blocks in host memory. Slower tiers may have some.
func New(cfg Config) (*Store, error) {
	if err := cfg.Layout.Validate(); err != nil {
		return nil, fmt.Errorf("layout of the blocks: %w", err)
	}
	cfg = cfg.withDefaults()
	slots := cfg.Memory.Slots()
	if slots < 1 || slots > pool.MaxSlots {
		return nil, fmt.Errorf("host memory of %d blocks: there must be from 1 to %d", slots, pool.MaxSlots)
	}
	if n := len(cfg.Memory.Slot(0)); n < cfg.Layout.Bytes() {
		return nil, fmt.Errorf("slots of %d bytes: a block has %d", n, cfg.Layout.Bytes())
	}

	s := &Store{cfg: cfg, pool: pool.New(slots), seen: pool.NewSketch(16 * slots), flights: map[block.Key]*flight{}}
	s.promises = promises{most: int(pinShare * float64(slots)), until: map[block.Key]time.Time{}}
	if err := checkTiers(cfg.Tiers); err != nil {
		return nil, err
	}
	for _, t := range cfg.Tiers {
		s.tiers = append(s.tiers, &tier{Tier: t, queue: make(chan copyJob, cfg.Queue)})
		s.copies = s.copies || t.Write != WriteNever
	}
	return s, nil
}

// checkTiers refuses tiers that share a name, and an order of kinds of memory that differs from the order of their speed.
func checkTiers(tiers []Tier) error {
	names := map[string]bool{"": true, fleet.Host.String(): true}
	last := fleet.Host
	for _, t := range tiers {
		if names[t.Name] {
			return fmt.Errorf("a tier has the name %q: each needs one, and host memory has %q", t.Name, fleet.Host)
		}
		names[t.Name] = true
		if t.Write == WriteNever {
			continue
		}
		if t.Tier <= last || t.Tier >= fleet.Tiers {
			return fmt.Errorf("tier %v comes after %v: tiers are ordered from the fastest to the slowest", t.Tier, last)
		}
		last = t.Tier
	}
	return nil
}

// Layout returns the layout of the blocks.
func (s *Store) Layout() block.Layout { return s.cfg.Layout }

// Run copies blocks to the slower tiers until ctx ends.
func (s *Store) Run(ctx context.Context) {
	var all sync.WaitGroup
	defer all.Wait()
	for _, t := range s.tiers {
		if t.Write == WriteNever {
			continue
		}
		for range s.cfg.Writers {
			all.Go(func() { s.copyAll(ctx, t) })
		}
	}
}

// ErrNoRoom is the error of a call that needs more host memory than is free or can be evicted.
var ErrNoRoom = errors.New("host memory is full of blocks that are in use")

// Stats is the state of a store, and its counts since it was made.
type Stats struct {
	// Slots counts the slots of host memory, by state.
	Slots pool.Stats
	// Committed counts blocks from engines, Found blocks that Find has found on any tier, Fetched blocks of leases, and Refused blocks
	// for which there was no room.
	Committed, Found, Fetched, Refused uint64
	// Pinned counts blocks that engines have pinned, and Unpinned those for whose pin there was no room, or that were nowhere.
	Pinned, Unpinned uint64
	// Tiers are the figures of Config.Tiers, in their order.
	Tiers []TierStats
}

// TierStats are a store's counts for one tier. They are members of a tier in the JSON of /debug/kv, which has the tier's name from its
// health.
type TierStats struct {
	// Name is the tier's name.
	Name string `json:"-"`
	// Waiting counts the blocks that wait to be copied to it, or are being copied.
	Waiting int `json:"waiting_blocks"`
	// Copied, Dropped and Failed count blocks that were copied to the tier, that its queue had no room for, and whose copy failed. Loaded
	// counts blocks that came from it.
	Copied  uint64 `json:"copied_blocks"`
	Dropped uint64 `json:"dropped_blocks"`
	Failed  uint64 `json:"failed_blocks"`
	Loaded  uint64 `json:"loaded_blocks"`
}

// Tier returns the figures of the tier with a name; without it they are all zero.
func (s *Stats) Tier(name string) TierStats {
	for _, t := range s.Tiers {
		if t.Name == name {
			return t
		}
	}
	return TierStats{}
}

// Stats returns the current values.
func (s *Store) Stats() (out Stats) {
	s.mu.Lock()
	out.Slots = s.pool.Stats()
	s.mu.Unlock()

	c := &s.counts
	out.Committed = c.committed.Load()
	out.Found = c.found.Load()
	out.Fetched = c.fetched.Load()
	out.Refused = c.refused.Load()
	out.Pinned = c.pinned.Load()
	out.Unpinned = c.unpinned.Load()
	for _, t := range s.tiers {
		out.Tiers = append(out.Tiers, TierStats{
			Name: t.Name, Copied: t.counts.copied.Load(), Dropped: t.counts.dropped.Load(), Failed: t.counts.failed.Load(),
			Loaded: t.counts.loaded.Load(), Waiting: int(t.pending.Load()),
		})
	}
	return out
}
