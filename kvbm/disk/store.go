package disk

import (
	"context"
	"errors"
	"fmt"

	"github.com/stator-project/stator/internal/kv/block"
)

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
