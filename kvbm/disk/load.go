package disk

import (
	"context"
	"errors"
	"fmt"

	"github.com/stator-project/stator/internal/kv/block"
	"github.com/stator-project/stator/kvbm/pool"
)

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
