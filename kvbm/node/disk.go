package node

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/stator-project/stator/internal/backoff"
	"github.com/stator-project/stator/internal/kv/block"
	"github.com/stator-project/stator/kvbm"
	"github.com/stator-project/stator/kvbm/disk"
)

// diskTier is the disk as a tier of a store. While the disk cannot be opened, because it is full or another process has its folder, the
// tier is empty and the others work.
type diskTier struct {
	cfg disk.Config

	mu    sync.Mutex
	disk  *disk.Disk // guarded by mu; nil until it is open
	err   error      // guarded by mu; why it is not open
	ended bool       // guarded by mu; it is not opened any more
}

// open tries to open the disk, and reports whether that is over: the disk is open, or the tier has ended.
func (t *diskTier) open() (over bool) {
	d, err := disk.Open(t.cfg)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.disk = d
	t.err = err
	if t.ended && d != nil {
		t.disk = nil
		t.err = d.Close()
	}
	return err == nil || t.ended
}

// The pauses between attempts to open the disk.
const (
	leastDiskPause = time.Second
	mostDiskPause  = 30 * time.Second
)

// keepOpening tries to open the disk until it is open, or ctx ends.
func (t *diskTier) keepOpening(ctx context.Context) {
	pauses := backoff.Backoff{Min: leastDiskPause, Max: mostDiskPause}
	for pauses.Wait(ctx) == nil {
		if t.open() {
			return
		}
	}
}

// current returns the disk, or why there is none.
func (t *diskTier) current() (*disk.Disk, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.disk == nil {
		return nil, fmt.Errorf("the disk tier is not open: %w", t.err)
	}
	return t.disk, nil
}

// Match implements [kvbm.Backend].
func (t *diskTier) Match(keys []block.Key) int {
	d, err := t.current()
	if err != nil {
		return 0
	}
	return d.Match(keys)
}

// Has implements [kvbm.Backend].
func (t *diskTier) Has(key block.Key) bool { return t.Match([]block.Key{key}) == 1 }

// Load implements [kvbm.Backend].
func (t *diskTier) Load(ctx context.Context, keys []block.Key, dst [][]byte) []error {
	d, err := t.current()
	if err == nil {
		return kvbm.Disk(d).Load(ctx, keys, dst)
	}
	errs := make([]error, len(keys))
	for i := range errs {
		errs[i] = err
	}
	return errs
}

// Store implements [kvbm.Backend].
func (t *diskTier) Store(ctx context.Context, key block.Key, data []byte, priority uint8) error {
	d, err := t.current()
	if err != nil {
		return err
	}
	return d.Store(ctx, key, data, priority)
}

// Pin pins a block, and reports whether the disk has it.
func (t *diskTier) Pin(key block.Key, until time.Time) bool {
	d, err := t.current()
	return err == nil && d.Pin(key, until)
}

// Flush drops all blocks. A disk that is not open has none to drop now, and keeps the blocks that it had.
func (t *diskTier) Flush() (blocks int, err error) {
	d, err := t.current()
	if err != nil {
		return 0, err
	}
	return d.Flush()
}

// close closes the disk, and ends the tier.
func (t *diskTier) close() error {
	t.mu.Lock()
	d := t.disk
	t.disk = nil
	t.ended = true
	t.err = disk.ErrClosed
	t.mu.Unlock()
	if d == nil {
		return nil
	}
	return d.Close()
}

// health returns whether the tier works, and why not.
func (t *diskTier) health() (h Health, reason string, stats disk.Stats) {
	d, err := t.current()
	if err != nil {
		return Failing, err.Error(), stats
	}
	stats = d.Stats()
	if stats.LastError != nil {
		reason = stats.LastError.Error()
	}
	switch {
	case stats.Failing:
		return Failing, reason, stats
	case stats.Degraded:
		return Degraded, reason, stats
	}
	return Healthy, reason, stats
}
