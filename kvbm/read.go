package kvbm

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/block"
	"github.com/stator-project/stator/internal/kv/onboard"
)

// Found describes the part of a prefix that a store has.
type Found struct {
	// Blocks counts the first blocks that are in the store, each on the fastest tier that has it.
	Blocks int
	// Load counts the blocks worth loading, and Took is the time that loading them takes.
	Load int
	Took time.Duration
	// On counts the blocks of Blocks in host memory, and then on each of Config.Tiers.
	On []int
}

// Compute returns how long an engine computes tokens that follow a prefix of other tokens.
type Compute func(prefix, tokens int) time.Duration

// Find looks for the blocks of keys, which follow each other after a prefix of so many tokens. If compute is nil, all blocks that are
// there are worth loading. It does no I/O.
func (s *Store) Find(keys []block.Key, prefix int, compute Compute) (f Found) {
	f.On = make([]int, 1+len(s.tiers))
	var parts []onboard.Part
	now := s.cfg.Now()
	for f.Blocks < len(keys) {
		n, on := s.leadingRun(keys[f.Blocks:])
		if n == 0 {
			break
		}
		f.Blocks += n
		speed := &s.host
		if on > 0 {
			speed = &s.tiers[on-1].speed
		}
		p := speed.part(n, now)
		p.Wait += time.Duration(f.On[on]) * p.Block // behind its earlier runs
		f.On[on] += n
		parts = append(parts, p)
	}

	s.counts.found.Add(uint64(f.Blocks))
	s.used(keys[:f.Blocks])
	if compute == nil {
		f.Load = f.Blocks
		return f
	}
	size := s.cfg.Layout.PageTokens
	f.Load, f.Took = onboard.Cut(parts, func(n int) time.Duration { return compute(prefix, n*size) })
	return f
}

// Copied reports how long an engine took to copy blocks from host memory, of which Find takes account.
func (s *Store) Copied(blocks int, took time.Duration) {
	if blocks > 0 && took > 0 {
		s.host.begin(blocks)
		s.host.endLoad(blocks, took, true, s.cfg.Now())
	}
}

// Report returns how long blocks take from each kind of memory to an engine, as measured: blocks of slower tiers come to host memory
// first. If nothing was measured they take no time, as in Find, so that loads happen and are measured.
func (s *Store) Report() (out fleet.Store) {
	tokens, now := time.Duration(s.cfg.Layout.PageTokens), s.cfg.Now()
	host := s.host.load(tokens, now)
	out.Used = true
	out.Tiers[fleet.Host] = host
	for _, t := range s.tiers {
		load := t.speed.load(tokens, now)
		load.Wait += host.Wait
		load.Token += host.Token
		if t.Write == WriteNever {
			out.Peers = load // which are no tier of the index
		} else {
			out.Tiers[t.Tier.Tier] = load
		}
	}
	return out
}

// leadingRun returns how many of the first blocks are in one place, and which as an index of Found.On.
func (s *Store) leadingRun(keys []block.Key) (n, on int) {
	s.mu.Lock()
	n = s.pool.Match(keys)
	s.mu.Unlock()
	if n > 0 {
		return n, 0
	}
	for i, t := range s.tiers {
		if n := t.Match(keys); n > 0 {
			return n, 1 + i
		}
	}
	return 0, 0
}

// used counts a use of blocks. Blocks that are used again are copied to tiers whose policy waits for that.
func (s *Store) used(keys []block.Key) {
	waits := slices.ContainsFunc(s.tiers, func(t *tier) bool { return t.Write == WriteReused })
	if !waits {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, key := range keys {
		s.seen.Add(key)
		i, ok := s.pool.Find(key)
		if !ok || s.seen.Seen(key) != 2 {
			continue
		}
		for _, t := range s.tiers {
			if t.Write == WriteReused {
				s.enqueue(t, key, s.pool.Slot(i).Priority)
			}
		}
	}
}

// Lease holds blocks in host memory, so that an engine can read them.
type Lease struct {
	store *Store
	// Slots are the slots of the blocks, in the order of their keys.
	Slots []int
	once  sync.Once
}

// Release gives the blocks back. Calls after the first one have no effect.
func (l *Lease) Release() {
	l.once.Do(func() {
		l.store.mu.Lock()
		defer l.store.mu.Unlock()
		// The end of a prefix leaves first.
		for _, i := range slices.Backward(l.Slots) {
			_ = l.store.pool.Release(i) // the lease has a reference
		}
	})
}

// flight is a block that is being fetched. done is closed at its end.
type flight struct{ done chan struct{} }

// Fetch brings blocks that follow each other into host memory, and holds them. The lease ends before the first block that could not be
// fetched within the deadline, so it may be empty; that is no error.
func (s *Store) Fetch(ctx context.Context, keys []block.Key) *Lease {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.FetchTimeout)
	defer cancel()

	l := &Lease{store: s}
	for len(l.Slots) < len(keys) && ctx.Err() == nil {
		rest := keys[len(l.Slots):]
		if n := s.hold(l, rest); n > 0 {
			continue
		}
		if !s.load(ctx, rest) {
			break
		}
	}
	s.counts.fetched.Add(uint64(len(l.Slots)))
	return l
}

// hold adds the first blocks to a lease that host memory has, and returns their number.
func (s *Store) hold(l *Lease, keys []block.Key) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, key := range keys {
		i, ok := s.pool.Acquire(key)
		if !ok {
			break
		}
		l.Slots = append(l.Slots, i)
		n++
	}
	return n
}

// load reads the first blocks into host memory that it does not have. It returns false if the first one is not there at the end.
func (s *Store) load(ctx context.Context, keys []block.Key) bool {
	for _, t := range s.tiers {
		n := t.Match(keys)
		if n == 0 {
			continue
		}
		mine, slots, other := s.claim(keys[:n])
		switch {
		case other != nil:
			select {
			case <-other.done: // another call fetches the first one
				return s.has(keys[0])
			case <-ctx.Done():
				return false
			}
		case len(mine) == 0:
			return s.has(keys[0]) // it came meanwhile, or there is no room
		}
		s.loadFrom(ctx, t, mine, slots)
		if s.has(keys[0]) {
			return true
		}
	}
	return false
}

// has reports whether host memory has a block.
func (s *Store) has(key block.Key) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pool.Has(key)
}

// claim takes slots for the first blocks that host memory does not have and no call fetches, as far as there is room. If another call
// fetches the first one, that is returned.
func (s *Store) claim(keys []block.Key) (mine []block.Key, slots []int, other *flight) {
	var gone []block.Key
	defer func() { s.left(gone) }()
	s.mu.Lock()
	defer s.mu.Unlock()

	if f := s.flights[keys[0]]; f != nil {
		return nil, nil, f
	}
	for _, key := range keys {
		if s.flights[key] != nil || s.pool.Has(key) {
			break
		}
		i, evicted, err := s.pool.Take(s.cfg.Now(), true)
		if evicted.Valid {
			gone = append(gone, evicted.Key)
		}
		if err != nil {
			s.counts.refused.Add(1)
			break
		}
		mine = append(mine, key)
		slots = append(slots, i)
		s.flights[key] = &flight{make(chan struct{})}
	}
	return mine, slots, nil
}

// loadFrom reads blocks from a tier into slots, and registers the blocks that came.
func (s *Store) loadFrom(ctx context.Context, t *tier, keys []block.Key, slots []int) {
	dst := make([][]byte, len(keys))
	for k, i := range slots {
		dst[k] = s.cfg.Memory.Slot(i)[:s.cfg.Layout.Bytes()]
	}
	t.speed.begin(len(keys))
	began := s.cfg.Now()
	errs := t.Load(ctx, keys, dst)
	failed := slices.ContainsFunc(errs, func(err error) bool { return err != nil })
	ended := s.cfg.Now()
	t.speed.endLoad(len(keys), ended.Sub(began), !failed, ended)

	if came := s.arrive(keys, slots, errs); len(came) > 0 {
		t.counts.loaded.Add(uint64(len(came)))
		s.cfg.Changed(fleet.Host, true, came)
	}
}

// arrive registers blocks without an error, and ends the flights of all.
func (s *Store) arrive(keys []block.Key, slots []int, errs []error) (came []block.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, i := range slots {
		if errs[k] != nil {
			_ = s.pool.Drop(i) // claim took it
			continue
		}
		_ = s.pool.Complete(i)
		if registered, err := s.pool.Register(i, keys[k], 0); err == nil && registered == i {
			came = append(came, keys[k])
		}
	}

	// Blocks of the beginning are used last, so that they leave last.
	for k, key := range slices.Backward(keys) {
		if errs[k] == nil {
			s.release(key)
		}
		close(s.flights[key].done)
		delete(s.flights, key)
	}
	return came
}
