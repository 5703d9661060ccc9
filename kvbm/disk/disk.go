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
	maxLog int64

	mu         sync.Mutex
	closed     bool
	pool       *pool.Pool
	entries    []entry // of the registered slots
	generation uint64  // the generation of the newest write
	epoch      uint64  // the number of flushes
	pending    []byte  // a batch of records for the log
	spare      []byte  // the batch that is written, or an empty one
	logging    bool    // a goroutine writes the log: log is its own
	logIdle    sync.Cond
	log        logWriter
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

// Store writes a block. It returns nil without writing if the tier has the block. When the context ends first, the block may still be
// written, and data is no longer used. Other errors are ErrBusy, ErrFailing, ErrFlushed, ErrSize, ErrClosed, pool.ErrFull and errors of
// the disk.
func (d *Disk) Store(ctx context.Context, key block.Key, data []byte, priority uint8) error {
	if len(data) == 0 || len(data) > d.cfg.BlockBytes {
		return fmt.Errorf("%w: %d bytes, of at most %d", ErrSize, len(data), d.cfg.BlockBytes)
	}
	if err := ctx.Err(); err != nil {
		return err
	}

	r, err := d.admit(key)
	if r == nil {
		return err
	}
	defer d.calls.Done()
	r.key = key
	r.priority = priority
	r.data = data
	return d.expired(ctx, d.writes.doRequest(ctx, r))
}

// admit returns a request for a Store, which counts in calls. It returns none if the tier has the block, and none with an error if
// the tier does not take it.
func (d *Disk) admit(key block.Key) (*request, error) {
	d.mu.Lock()
	defer d.mu.Unlock()

	if d.closed {
		return nil, ErrClosed
	}
	if i, ok := d.pool.Acquire(key); ok {
		return nil, d.pool.Release(i) // counts as a use
	}
	if d.health.failing != nil {
		if d.cfg.Now().Before(d.health.retry) {
			return nil, d.health.failing
		}
		d.health.retry = d.cfg.Now().Add(d.health.pause.Next()) // this Store tries, and others wait for its result
	}

	r := d.writes.getRequest()
	if r == nil {
		d.stats.Busy++
		return nil, ErrBusy
	}
	r.epoch = d.epoch
	d.calls.Add(1)
	return r, nil
}

// write is a Store in a goroutine of the lane.
func (d *Disk) write(r *request, buf []byte) error {
	if r.left() {
		return nil
	}
	length := len(r.data)
	i, e, err := d.take(length, buf)
	if err != nil {
		return err
	}
	if !r.withData(func(data []byte) { e.sum = copySum(buf[headerBytes:], data) }) {
		return d.drop(i)
	}
	e.known = true
	r.entry = e

	_, err = d.blocks.WriteAt(putHeader(buf, r.key, e), int64(i)*d.stride)
	if err != nil {
		err = fmt.Errorf("write block %v: %w", r.key, err)
		return errors.Join(d.failed(err), d.drop(i))
	}
	err = d.register(i, r)
	d.writeLog()
	return err
}

// take returns a slot to write to. The buffer is used to hand over a pinned block that is evicted from it.
func (d *Disk) take(length int, buf []byte) (i int, e entry, err error) {
	d.mu.Lock()
	i, evicted, err := d.pool.Take(d.cfg.Now(), d.cfg.Evicted != nil)
	if err != nil {
		d.mu.Unlock()
		return 0, e, err
	}
	d.generation++
	old := d.entries[i]
	e = entry{generation: d.generation, length: uint32(length)}
	d.entries[i] = e
	d.mu.Unlock()

	if evicted.Valid && d.cfg.Evicted != nil {
		var data []byte
		if !evicted.Until.IsZero() && d.readSlot(i, old, buf) == nil {
			data = buf[headerBytes : headerBytes+int(old.length)]
			if _, err := verify(data, buf, evicted.Key, old); err != nil { // copies the bytes onto themselves
				data = nil
			}
		}
		d.cfg.Evicted(evicted, data)
	}
	return i, e, nil
}

func (d *Disk) drop(i int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.pool.Drop(i)
}

// register makes a block that was written visible.
func (d *Disk) register(i int, r *request) error {
	d.mu.Lock()
	defer d.mu.Unlock()

	d.health.failing = nil
	d.health.pause.Reset()
	if r.epoch != d.epoch {
		return errors.Join(ErrFlushed, d.pool.Drop(i))
	}

	d.stats.Stores++
	d.entries[i] = r.entry
	if err := d.pool.Complete(i); err != nil {
		return err
	}
	registered, err := d.pool.Register(i, r.key, r.priority)
	if err != nil {
		return err
	}
	if registered == i {
		d.logRecord(recordAdd, i)
	}
	return d.pool.Release(registered)
}

// failed keeps the error of a write, and lets the tier refuse blocks for a time.
func (d *Disk) failed(err error) error {
	d.mu.Lock()
	defer d.mu.Unlock()

	d.stats.WriteErrors++
	d.noteError(err)
	if d.health.failing == nil {
		d.health.retry = d.cfg.Now().Add(d.health.pause.Next())
	}
	d.health.failing = fmt.Errorf("%w: %w", ErrFailing, err)
	return err
}

// noteError keeps an error of the disk.
//
// Requires: mu.
func (d *Disk) noteError(err error) {
	d.stats.LastError = err
	d.health.lastError = d.cfg.Now()
}

// Load reads a block into dst, whose length is the block's length. After an error dst has no defined content, and nothing writes to it
// later. Errors are ErrNotFound, ErrTorn, ErrStale, ErrBusy, ErrSize, ErrClosed, the error of the context and errors of the disk.
func (d *Disk) Load(ctx context.Context, key block.Key, dst []byte) error {
	if err := ctx.Err(); err != nil {
		return err
	}

	r, err := d.find(key, len(dst))
	if err != nil {
		return err
	}
	defer d.calls.Done()
	r.data = dst
	return d.expired(ctx, d.reads.doRequest(ctx, r))
}

// find returns a request for a Load, which has a reference to the slot and counts in calls.
func (d *Disk) find(key block.Key, length int) (*request, error) {
	d.mu.Lock()
	defer d.mu.Unlock()

	if d.closed {
		return nil, ErrClosed
	}
	if !d.pool.Has(key) {
		return nil, ErrNotFound
	}
	r := d.reads.getRequest()
	if r == nil {
		d.stats.Busy++
		return nil, ErrBusy
	}

	r.key = key
	r.slot, _ = d.pool.Acquire(key)
	r.entry = d.entries[r.slot]
	if int(r.entry.length) != length {
		d.reads.putRequest(r)
		return nil, errors.Join(fmt.Errorf("%w: the block has %d bytes, and there is room for %d", ErrSize, r.entry.length, length),
			d.pool.Release(r.slot))
	}
	d.calls.Add(1)
	return r, nil
}

// loadBlock is a Load in a goroutine of the lane.
func (d *Disk) loadBlock(r *request, buf []byte) error {
	if r.left() {
		return d.release(r.slot)
	}
	err := d.readSlot(r.slot, r.entry, buf)
	loaded := false
	if err == nil {
		loaded = r.withData(func(data []byte) { r.entry.sum, err = verify(data, buf, r.key, r.entry) })
	}
	if err != nil {
		return d.dropDamaged(r, fmt.Errorf("read block %v: %w", r.key, err))
	}
	if !loaded {
		return d.release(r.slot)
	}
	return d.loaded(r)
}

// readSlot reads a slot into the buffer, without its header if the checksum is known, and does not verify it.
func (d *Disk) readSlot(i int, e entry, buf []byte) error {
	from := 0
	if e.known {
		from = headerBytes
	}
	_, err := d.blocks.ReadAt(buf[from:headerBytes+padded(int(e.length))], int64(i)*d.stride+int64(from))
	return err
}

// release gives the reference to a slot back.
func (d *Disk) release(i int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.pool.Release(i)
}

// loaded counts a Load that was verified, keeps the checksum, and gives the reference to the slot back. The slot has the same block as
// long as there are references.
func (d *Disk) loaded(r *request) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stats.Loads++
	r.entry.known = true
	d.entries[r.slot] = r.entry
	return d.pool.Release(r.slot)
}

// dropDamaged evicts a block that could not be read, and gives the reference to its slot back.
func (d *Disk) dropDamaged(r *request, cause error) error {
	d.mu.Lock()
	switch {
	case errors.Is(cause, ErrTorn):
		d.stats.Torn++
	case errors.Is(cause, ErrStale):
		d.stats.Stale++
	default:
		d.stats.ReadErrors++
		d.noteError(cause)
	}

	var evicted pool.Evicted
	if s := d.pool.Slot(r.slot); s.State == pool.Active && s.Key == r.key { // not dropped by another Load
		d.logRecord(recordRemove, r.slot)
		evicted = d.pool.Evict(r.key)
	}
	err := d.pool.Release(r.slot)
	d.mu.Unlock()

	d.writeLog()
	if evicted.Valid && d.cfg.Evicted != nil {
		d.cfg.Evicted(evicted, nil)
	}
	return errors.Join(cause, err)
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
