package kvbm

import (
	"context"
	"time"

	"github.com/stator-project/stator/internal/kv/block"
)

// pinShare is the part of host memory's slots whose number bounds the blocks that engines have pinned, on whatever tier they are. Without a
// slower tier pinned blocks cannot leave host memory, so the rest is for all others.
const pinShare = 0.25

// promises are the blocks that engines have pinned, with the ends of their pins.
type promises struct {
	most  int
	until map[block.Key]time.Time
}

// admit returns how many of the first keys there is room for, and notes their pins. A pin that is there already is only made longer.
func (p *promises) admit(keys []block.Key, until, now time.Time) int {
	swept := false
	for n, key := range keys {
		end, pinned := p.until[key]
		if !pinned && len(p.until) >= p.most && !swept {
			p.sweep(now)
			swept = true
		}
		if !pinned && len(p.until) >= p.most {
			return n
		}
		if end.Before(until) {
			p.until[key] = until
		}
	}
	return len(keys)
}

// sweep forgets pins that have ended.
func (p *promises) sweep(now time.Time) {
	for key, end := range p.until {
		if !end.After(now) {
			delete(p.until, key)
		}
	}
}

// PinShare pins the first blocks of a prompt for an engine, as [Store.Pin] does, but for as many as pinShare has room for. It returns how
// many of them are anywhere.
func (s *Store) PinShare(ctx context.Context, keys []block.Key, ttl time.Duration) (pinned int) {
	now := s.cfg.Now()
	until := now.Add(ttl)
	s.mu.Lock()
	n := s.promises.admit(keys, until, now)
	s.mu.Unlock()
	pinned = s.Pin(ctx, keys[:n], until)
	s.counts.pinned.Add(uint64(pinned))
	s.counts.unpinned.Add(uint64(len(keys) - pinned))
	return pinned
}
