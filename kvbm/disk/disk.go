package disk

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"time"

	"github.com/stator-project/stator/internal/backoff"
	"github.com/stator-project/stator/internal/kv/block"
	"github.com/stator-project/stator/kvbm/pool"
)

// Config describes a tier. Dir, Bytes and BlockBytes are required.
type Config struct {
	// Dir is the folder of the tier. It is made if it does not exist, and belongs to the tier alone.
	Dir string
	// Bytes is the size of the file of the blocks. It is reserved at once.
	Bytes int64
	// BlockBytes is the size of the largest block.
	BlockBytes int
	// Space is the space of the keys. Open drops blocks of another space or size.
	Space block.Space
	// Workers is the number of goroutines that read, and likewise of the goroutines that write. Each has a buffer for a block. The
	// default is 32 for blocks of up to 4 MiB, of which some are verified or copied while the disk is busy with the others, and 16 for
	// larger ones.
	Workers int
	// Queue is the number of requests that may wait beside those in progress, for reads and for writes. The default is 64.
	Queue int
	// Evicted is called for a block that Store evicts for another one, and for a block that Load drops, by the goroutine that does
	// so, which waits for it. Data has the bytes of a block that leaves in spite of a pin, unless they are damaged, and is valid during
	// the call only. Without this function, pinned blocks stay until their pin ends.
	Evicted func(e pool.Evicted, data []byte)
	// Now returns the time. The default is time.Now.
	Now func() time.Time

	files files // the system's functions, unless a test has others
}

// The defaults, and the bounds of the values.
const (
	defaultWorkers = 32 // and half of it for blocks above smallBlock
	smallBlock     = 4 << 20
	defaultQueue   = 64
	maxWorkers     = 1024
	maxQueue       = 1 << 16
	maxBlockBytes  = 1 << 30

	leastPause = time.Second // between a write that failed and the next
	mostPause  = time.Minute
)

// Disk is an open tier. Its methods may be called by many goroutines.
type Disk struct {
	cfg    Config
	stride int64 // bytes of a slot with its header
	lock   file
	blocks file
	memory [][]byte // the buffers of the goroutines
	reads  *lane
	writes *lane
	calls  sync.WaitGroup // Load, Store, Remove, Pin and Flush in progress

	mu         sync.Mutex
	closed     bool
	pool       *pool.Pool
	entries    []entry // of the registered slots
	generation uint64  // the generation of the newest write
	epoch      uint64  // the number of flushes
	log        indexLog
	health     health
	stats      Stats
}

// health has the result of the last write, and when the last error was.
type health struct {
	failing   error // wraps ErrFailing and the cause; nil if writes succeed
	retry     time.Time
	pause     backoff.Backoff
	lastError time.Time
}

// degradedTime is the time for which an error of the disk shows.
const degradedTime = time.Minute

// Stats counts blocks and operations since Open.
type Stats struct {
	// Slots has the states of the slots.
	Slots pool.Stats
	// Direct is whether the file is read and written with O_DIRECT.
	Direct bool
	// Async is whether the kernel does that asynchronously, so that no thread waits for it.
	Async bool
	// Restored is the number of blocks that Open found in the log, and LogDamaged whether the log ended in a damaged batch.
	Restored   int
	LogDamaged bool
	// Loads and Stores count successes. A Store whose caller returned early counts if the block was written.
	Loads, Stores uint64
	// Torn and Stale count blocks that Load dropped, and ReadErrors blocks that it could not read and dropped as well.
	Torn, Stale, ReadErrors uint64
	// WriteErrors counts writes of blocks that failed. While Failing, the tier refuses blocks for a time after each.
	WriteErrors uint64
	Failing     bool
	// LastError is the error of the last read or write of the disk that failed. Degraded is whether that was within the last minute.
	LastError error
	Degraded  bool
	// Busy counts requests that found the queue full, and Expired those whose context ended first.
	Busy, Expired uint64
	// LogBytes is the size of the log, Rewrites how often it was written again, LogErrors its writes that failed, and LogLost the
	// records that were left out, because the log was too slow or failed. After a restart their blocks are missing.
	LogBytes                     int64
	Rewrites, LogErrors, LogLost uint64
}

// slots returns the number of slots of a tier.
func (c *Config) slots() int64 { return c.Bytes / int64(headerBytes+padded(c.BlockBytes)) }

func (c *Config) setDefaults() error {
	if c.Workers == 0 {
		c.Workers = defaultWorkers
		if c.BlockBytes > smallBlock {
			c.Workers /= 2
		}
	}
	if c.Queue == 0 {
		c.Queue = defaultQueue
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.files.wrap == nil {
		c.files = realFiles()
	}

	if c.BlockBytes < 1 || c.BlockBytes > maxBlockBytes {
		return fmt.Errorf("blocks of %d bytes: from 1 to %d are possible", c.BlockBytes, maxBlockBytes)
	}
	if c.Workers < 1 || c.Workers > maxWorkers || c.Queue < 1 || c.Queue > maxQueue {
		return fmt.Errorf("%d workers and a queue of %d: from 1 to %d and %d are possible", c.Workers, c.Queue, maxWorkers, maxQueue)
	}
	if n := c.slots(); n < 1 || n > pool.MaxSlots {
		return fmt.Errorf("%d bytes have room for %d blocks of %d bytes with their headers: from 1 to %d are possible",
			c.Bytes, n, c.BlockBytes, pool.MaxSlots)
	}
	return nil
}

// expired counts requests whose context ended.
func (d *Disk) expired(ctx context.Context, err error) error {
	if err != nil && errors.Is(err, ctx.Err()) {
		d.mu.Lock()
		d.stats.Expired++
		d.mu.Unlock()
	}
	return err
}

// Has reports whether the tier has a block.
func (d *Disk) Has(key block.Key) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.pool.Has(key)
}

// Match returns how many of the keys the tier has, from the first on without a gap.
func (d *Disk) Match(keys []block.Key) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.pool.Match(keys)
}

// Keys iterates over the blocks. Blocks that come or go meanwhile may be missing.
func (d *Disk) Keys() iter.Seq[block.Key] {
	const atOnce = 1024 // slots for which the tier is locked
	return func(yield func(block.Key) bool) {
		keys := make([]block.Key, 0, atOnce)
		for from := 0; from < len(d.entries); from += atOnce {
			keys = keys[:0]
			d.mu.Lock()
			for i := from; i < min(from+atOnce, len(d.entries)); i++ {
				if s := d.pool.Slot(i); s.State == pool.Active || s.State == pool.Inactive {
					keys = append(keys, s.Key)
				}
			}
			d.mu.Unlock()

			for _, key := range keys {
				if !yield(key) {
					return
				}
			}
		}
	}
}

// Pin keeps a block from eviction until a time, as [pool.Pool.Pin] describes. It returns false if the tier does not have it.
func (d *Disk) Pin(key block.Key, until time.Time) bool {
	return d.change(key, func() bool { return d.pool.Pin(key, until) })
}

// change changes how long a block stays, and logs it.
func (d *Disk) change(key block.Key, change func() bool) bool {
	d.mu.Lock()
	if d.closed || !change() {
		d.mu.Unlock()
		return false
	}
	d.calls.Add(1)
	defer d.calls.Done()
	i, _ := d.pool.Find(key)
	d.logRecord(recordAdd, i)
	d.mu.Unlock()

	d.writeLog()
	return true
}

// Remove drops a block, and returns false if the tier does not have it. After a power failure it may be there again.
func (d *Disk) Remove(key block.Key) bool {
	d.mu.Lock()
	i, ok := d.pool.Find(key)
	if !ok || d.closed {
		d.mu.Unlock()
		return false
	}
	d.calls.Add(1)
	defer d.calls.Done()
	d.logRecord(recordRemove, i)
	d.pool.Evict(key)
	d.mu.Unlock()

	d.writeLog()
	return true
}

// Stats returns the counts of now.
func (d *Disk) Stats() Stats {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.stats
	s.Slots = d.pool.Stats()
	s.Failing = d.health.failing != nil
	s.Degraded = s.LastError != nil && d.cfg.Now().Sub(d.health.lastError) < degradedTime
	return s
}
