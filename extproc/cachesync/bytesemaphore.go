package cachesync

import (
	"context"
	"fmt"
	"sync"
)

// byteSemaphore bounds memory that several recoveries share. It is not fair: a large request may wait
// while smaller ones pass it.
type byteSemaphore struct {
	limit int

	mu       sync.Mutex
	free     int           // guarded by mu
	released chan struct{} // guarded by mu; closed and replaced by each release
}

func newByteSemaphore(limit int) *byteSemaphore {
	return &byteSemaphore{limit: limit, free: limit, released: make(chan struct{})}
}

// acquire waits until n bytes are free. It returns an error at once if n exceeds the limit.
func (b *byteSemaphore) acquire(ctx context.Context, n int) error {
	if n > b.limit {
		return fmt.Errorf("a dump of %d bytes exceeds the limit of %d bytes for all dumps together", n, b.limit)
	}

	for {
		b.mu.Lock()
		if n <= b.free {
			b.free -= n
			b.mu.Unlock()
			return nil
		}
		released := b.released
		b.mu.Unlock()

		select {
		case <-released:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// release frees n acquired bytes.
func (b *byteSemaphore) release(n int) {
	if n == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()

	b.free += n
	close(b.released)
	b.released = make(chan struct{})
}
