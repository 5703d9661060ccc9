package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/block"
	"github.com/stator-project/stator/kvbm"
)

// Blocks names blocks: by their keys, followed by the keys of engines' hashes.
type Blocks struct {
	Keys []block.Key
	// Hashes are hashes of 64 bits as engines have them in their KV events.
	Hashes []uint64
}

// MaxPin is the longest time of a pin, and MaxBlocks the highest number of blocks of one call.
const (
	MaxPin    = 7 * 24 * time.Hour
	MaxBlocks = 4096
)

// controlTimeout bounds a call that changes the store.
const controlTimeout = 30 * time.Second

// Errors of calls that change the store.
var (
	// ErrClosed is the error while there is no store: before the first engine, and at the end of the node.
	ErrClosed = errors.New("the KV store is not open: it opens when the first engine connects")
	// ErrBusy is the error while another such call runs.
	ErrBusy = errors.New("another call changes the KV store: try again when it has ended")
	// ErrBounds is the error of a call that is too large.
	ErrBounds = errors.New("the call is out of bounds")
)

// Pin keeps blocks for a time, at most MaxPin, as [kvbm.Store.Pin] describes; 0 ends their pins. It returns how many of them are
// anywhere. The error wraps ErrClosed, ErrBusy or ErrBounds.
func (n *Node) Pin(ctx context.Context, blocks Blocks, ttl time.Duration) (pinned int, err error) {
	if ttl < 0 || ttl > MaxPin {
		return 0, fmt.Errorf("%w: a pin of %v: it may last up to %v, and 0 ends it", ErrBounds, ttl, MaxPin)
	}
	var until time.Time
	if ttl > 0 {
		until = time.Now().Add(ttl)
	}
	err = n.control(ctx, func(ctx context.Context, s *kvbm.Store) error {
		keys, err := blocks.keys(s)
		if err == nil {
			pinned = s.Pin(ctx, keys, until)
		}
		return err
	})
	return pinned, err
}

// Prefetch brings blocks into host memory, and returns how many of the first ones are there. The error wraps ErrClosed, ErrBusy or
// ErrBounds.
func (n *Node) Prefetch(ctx context.Context, blocks Blocks) (there int, err error) {
	err = n.control(ctx, func(ctx context.Context, s *kvbm.Store) error {
		keys, err := blocks.keys(s)
		if err == nil {
			there = s.Prefetch(ctx, keys)
		}
		return err
	})
	return there, err
}

// Flush drops the blocks of a tier, or if tier is empty the blocks of all tiers that can drop them, and returns how many left each. The
// error wraps ErrClosed, ErrBusy or [kvbm.ErrNoFlush], or is the error of a tier.
func (n *Node) Flush(ctx context.Context, tier string) (blocks map[fleet.Tier]int, err error) {
	var only []fleet.Tier
	switch tier {
	case "":
	case fleet.Host.String():
		only = []fleet.Tier{fleet.Host}
	case fleet.Disk.String():
		only = []fleet.Tier{fleet.Disk}
	default:
		return nil, fmt.Errorf("%w: tier %q: host and disk can be; objects are kept, because other nodes have them too", kvbm.ErrNoFlush,
			tier)
	}
	err = n.control(ctx, func(_ context.Context, s *kvbm.Store) (err error) {
		blocks, err = s.Flush(only...)
		return err
	})
	return blocks, err
}

// control calls f with the store, one call at a time. Run waits for it, and ends its context.
func (n *Node) control(ctx context.Context, f func(ctx context.Context, s *kvbm.Store) error) error {
	select {
	case n.controls <- struct{}{}:
	default:
		return ErrBusy
	}
	defer func() { <-n.controls }()

	n.mu.Lock()
	store, live := n.store, n.ctx
	if store != nil {
		n.tasks.Add(1)
	}
	n.mu.Unlock()
	if store == nil {
		return ErrClosed
	}
	defer n.tasks.Done()

	ctx, cancel := context.WithTimeout(ctx, controlTimeout)
	defer cancel()
	stop := context.AfterFunc(live, cancel)
	defer stop()
	return f(ctx, store)
}

// keys returns the keys of all blocks. The error wraps ErrBounds.
func (b *Blocks) keys(s *kvbm.Store) ([]block.Key, error) {
	n := len(b.Keys) + len(b.Hashes)
	if n == 0 || n > MaxBlocks {
		return nil, fmt.Errorf("%w: %d blocks: name from 1 to %d by keys or hashes", ErrBounds, n, MaxBlocks)
	}
	keys := append(make([]block.Key, 0, n), b.Keys...)
	layout := s.Layout()
	space := layout.Space()
	for _, h := range b.Hashes {
		keys = append(keys, space.KeyOfHash(h))
	}
	return keys, nil
}
