package object

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stator-project/stator/internal/backoff"
	"github.com/stator-project/stator/internal/kv/block"
)

// filling is a pack in memory.
type filling struct {
	data    []byte
	entries []entry
	began   time.Time // when the first block came
	number  int
}

// writing is the packs in memory: at most one that is being filled, and those in the queue or with a writer.
type writing struct {
	most       int // packs in memory
	packBytes  int
	packBlocks int

	mu      sync.Mutex
	current *filling
	free    [][]byte
	// live has the numbers of the packs in memory, and last is the number of the newest.
	live map[int]struct{}
	last int
	// pending has the blocks in memory, so that none is taken twice.
	pending map[block.Key]struct{}
	// changed is closed when a pack leaves memory, and replaced.
	changed chan struct{}
	dropped int   // packs
	lastErr error // of the last of them
	closed  bool

	allocated atomic.Int64 // bytes of all buffers

	queue   chan *filling // has room for all packs, so sending never waits
	numbers atomic.Uint32 // of packs
}

func (w *writing) init(cfg Config) {
	w.most = cfg.Packs
	w.packBlocks = min(cfg.PackBytes/cfg.BlockBytes, maxEntries)
	w.packBytes = w.packBlocks * cfg.BlockBytes
	w.pending = map[block.Key]struct{}{}
	w.live = map[int]struct{}{}
	w.changed = make(chan struct{})
	w.queue = make(chan *filling, cfg.Packs)
}

// buffers returns the number of packs in memory.
func (w *writing) buffers() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.live)
}

// Store copies a block into the pack that is being filled. It never waits for the store. A block that is published or in a pack
// already is left as it is. The error wraps ErrBusy if there is no room, ErrUnavailable while the tier is not healthy, or ErrClosed.
func (t *Tier) Store(k block.Key, data []byte) error {
	if len(data) != t.cfg.BlockBytes {
		return fmt.Errorf("store block %v: it has %d bytes, and blocks of this layout %d", k, len(data), t.cfg.BlockBytes)
	}
	if err := t.health.check(); err != nil {
		return err
	}
	if t.Has(k) {
		t.counters.duplicates.Add(1)
		return nil
	}
	w := &t.writing
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, is := w.pending[k]; is {
		t.counters.duplicates.Add(1)
		return nil
	}
	if err := w.begin(); err != nil {
		if errors.Is(err, ErrBusy) {
			t.counters.busy.Add(1)
		}
		return err
	}

	f := w.current
	f.entries = append(f.entries, entry{key: k, offset: uint32(len(f.data))})
	f.data = append(f.data, data...)
	w.pending[k] = struct{}{}
	t.counters.stored.Add(1)
	if len(f.entries) == w.packBlocks {
		w.sealLocked()
	}
	return nil
}

// begin makes sure that a pack is being filled.
func (w *writing) begin() error {
	switch {
	case w.closed:
		return ErrClosed
	case w.current != nil:
		return nil
	case len(w.live) == w.most:
		return ErrBusy
	}

	var buffer []byte
	if n := len(w.free); n > 0 {
		buffer = w.free[n-1]
		w.free = w.free[:n-1]
	} else {
		buffer = make([]byte, 0, w.packBytes)
		w.allocated.Add(int64(w.packBytes))
	}
	w.last++
	w.live[w.last] = struct{}{}
	w.current = &filling{data: buffer, began: time.Now(), number: w.last}
	return nil
}

// sealLocked gives the pack that is being filled to the writers.
func (w *writing) sealLocked() {
	if w.current != nil {
		w.queue <- w.current
		w.current = nil
	}
}

// seal gives the pack that is being filled to the writers if it is at least of an age.
func (t *Tier) seal(age time.Duration) {
	w := &t.writing
	w.mu.Lock()
	defer w.mu.Unlock()

	if w.current != nil && time.Since(w.current.began) >= age {
		w.sealLocked()
	}
}

func (t *Tier) closeQueue() {
	w := &t.writing
	w.mu.Lock()
	defer w.mu.Unlock()

	w.sealLocked()
	w.closed = true
	close(w.queue)
}

// Flush publishes the blocks that are in memory, and waits for it until ctx ends. Blocks that are stored meanwhile are not waited for. It
// returns the error of a pack that was dropped meanwhile.
func (t *Tier) Flush(ctx context.Context) error {
	w := &t.writing
	w.mu.Lock()
	w.sealLocked()
	newest := w.last
	dropped := w.dropped
	w.mu.Unlock()

	for {
		left, changed, err := w.upTo(newest, dropped)
		if left == 0 {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("flush: %d packs are not written: %w", left, ctx.Err())
		}
	}
}

// upTo returns how many packs are in memory of those up to a number, and the error of the last that was dropped since dropped were.
// changed is closed when a pack leaves memory.
func (w *writing) upTo(newest, dropped int) (left int, changed chan struct{}, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()

	for number := range w.live {
		if number <= newest {
			left++
		}
	}
	if w.dropped > dropped {
		err = w.lastErr
	}
	return left, w.changed, err
}

// write publishes the packs of the queue, until it is closed.
func (t *Tier) write(ctx context.Context) {
	for f := range t.writing.queue {
		err := t.publish(ctx, f)
		if err != nil {
			t.counters.dropped.Add(int64(len(f.entries)))
		}
		t.writing.release(f, err)
	}
}

// release takes the buffer of a pack back.
func (w *writing) release(f *filling, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()

	for _, e := range f.entries {
		delete(w.pending, e.key)
	}
	w.free = append(w.free, f.data[:0])
	delete(w.live, f.number)
	if err != nil {
		w.dropped++
		w.lastErr = err
	}
	close(w.changed)
	w.changed = make(chan struct{})
}

// publish writes a pack and then its index. It tries again until the pack's lifetime ends.
func (t *Tier) publish(ctx context.Context, f *filling) error {
	ctx, cancel := context.WithTimeout(ctx, t.cfg.PackLifetime)
	defer cancel()
	name := newName(time.Now(), t.nonce, t.writing.numbers.Add(1), t.cfg.Node)
	mac := t.macs.pack(name.text)
	for i := range f.entries {
		e := &f.entries[i]
		e.tag = mac.Tag(uint32(i), f.data[e.offset:][:t.cfg.BlockBytes])
	}
	index := encodeIndex(mac, t.cfg.Space, t.cfg.BlockBytes, f.entries)

	pauses := backoff.Backoff{Min: 100 * time.Millisecond, Max: 2 * time.Second}
	for {
		err := t.putObject(ctx, t.base+"p/"+name.text, f.data)
		if err == nil {
			err = t.putObject(ctx, t.base+"i/"+name.text, index)
		}
		if err == nil {
			break
		}
		if pauses.Wait(ctx) != nil {
			return fmt.Errorf("write a pack of %d blocks: %w", len(f.entries), err)
		}
	}

	t.counters.packs.Add(1)
	t.counters.published.Add(int64(len(f.entries)))
	t.catalog.addPack(&pack{name: name.text, entries: f.entries})
	return nil
}
