package disk

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/stator-project/stator/kvbm/pool"
)

// indexLog is the log of the blocks, with the records that wait for it. The tier's lock guards it, but for out while busy is set.
type indexLog struct {
	pending []byte // a batch of records
	spare   []byte // the batch that is written, or an empty one
	busy    bool   // a goroutine writes: out is its own
	idle    sync.Cond
	out     logWriter
	most    int64 // bytes
}

// logRecord adds a record of a registered slot to the pending batch. It is left out while the log is slower than the blocks. The
// tier is locked.
func (d *Disk) logRecord(kind byte, i int) {
	if len(d.log.pending) == cap(d.log.pending) {
		d.stats.LogLost++
		return
	}
	d.log.pending = appendRecord(d.log.pending, d.record(kind, i))
}

func (d *Disk) record(kind byte, i int) record {
	s := d.pool.Slot(i)
	return record{kind: kind, priority: s.Priority, slot: uint32(i), key: s.Key, entry: d.entries[i], until: s.Until}
}

// writeLog writes the pending records, unless another goroutine is at it, which then writes these too.
func (d *Disk) writeLog() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.log.busy {
		return
	}
	d.log.busy = true
	d.writePending()
	d.endLogging()
}

// writePending writes batches until none is left. The tier is locked, except while a batch is written.
func (d *Disk) writePending() {
	for len(d.log.pending) > batchHeader {
		batch := d.log.pending
		d.log.pending = d.log.spare
		d.mu.Unlock()
		err := d.writeBatch(batch)
		d.mu.Lock()

		if err != nil {
			d.stats.LogErrors++
			d.stats.LogLost += uint64((len(batch) - batchHeader) / recordBytes)
			d.noteError(err)
		}
		d.stats.LogBytes = d.log.out.size
		d.log.spare = batch[:batchHeader]
	}
}

func (d *Disk) endLogging() {
	d.log.busy = false
	d.log.idle.Broadcast()
}

// writeBatch appends a batch to the log, or first writes a new log if this one is too long.
func (d *Disk) writeBatch(batch []byte) error {
	if d.log.out.size+int64(len(batch)) > d.log.most {
		if err := d.rewriteLog(); err != nil {
			return err
		}
	}
	if err := d.log.out.write(batch); err != nil {
		return fmt.Errorf("write the index: %w", err)
	}
	return nil
}

// rewriteLog puts a log of the registered slots in the place of the old one. The tier is not locked, so slots change meanwhile:
// their records follow in the next batch, and replay takes the newest generation of each slot.
func (d *Disk) rewriteLog() error {
	d.mu.Lock()
	d.generation++
	identity := d.generation
	d.mu.Unlock()

	w, err := d.createLog(identity)
	if err == nil {
		err = d.writeSlots(&w)
	}
	if err == nil {
		err = os.Rename(filepath.Join(d.cfg.Dir, newIndex), filepath.Join(d.cfg.Dir, indexName))
	}
	if err != nil {
		if w.f != nil {
			w.f.Close()
		}
		return fmt.Errorf("rewrite the index: %w", err)
	}

	d.mu.Lock()
	defer d.mu.Unlock()
	if d.log.out.f != nil {
		d.log.out.f.Close()
		d.stats.Rewrites++
	}
	d.log.out = w
	d.stats.LogBytes = w.size
	return nil
}

// createLog makes an empty log beside the old one.
func (d *Disk) createLog(identity uint64) (w logWriter, err error) {
	f, err := os.OpenFile(filepath.Join(d.cfg.Dir, newIndex), os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return w, err
	}
	w = logWriter{f: d.cfg.files.wrap(indexName, f), identity: identity}

	err = allocate(f, d.log.most)
	if err != nil && !errors.Is(err, errors.ErrUnsupported) {
		return w, err
	}
	return w, w.begin(d.layout())
}

// writeSlots writes the records of all registered slots.
func (d *Disk) writeSlots(w *logWriter) error {
	batch := newBatch()
	for i := 0; i < len(d.entries); {
		batch = batch[:batchHeader]
		d.mu.Lock()
		for ; i < len(d.entries) && len(batch) < cap(batch); i++ {
			if s := d.pool.Slot(i).State; s == pool.Active || s == pool.Inactive {
				batch = appendRecord(batch, d.record(recordAdd, i))
			}
		}
		d.mu.Unlock()

		if len(batch) == batchHeader {
			return nil
		}
		if err := w.write(batch); err != nil {
			return err
		}
	}
	return nil
}

// Flush drops all blocks, also blocks that are being stored, and returns when they cannot come back: not even after a power failure, and
// how many there were. It waits for a log write in progress.
func (d *Disk) Flush() (blocks int, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return 0, ErrClosed
	}
	d.calls.Add(1)
	defer d.calls.Done()

	d.epoch++
	blocks = d.pool.Flush()
	d.log.pending = d.log.pending[:batchHeader]
	for d.log.busy {
		d.log.idle.Wait()
	}
	d.log.busy = true
	d.mu.Unlock()
	err = d.rewriteLog()
	if err != nil { // the old log has the blocks
		err = os.Remove(filepath.Join(d.cfg.Dir, indexName))
	}
	err = errors.Join(err, syncDir(d.cfg.Dir))
	d.mu.Lock()

	d.writePending()
	d.endLogging()
	if err != nil {
		return blocks, fmt.Errorf("flush: blocks may be there again after a restart: %w", err)
	}
	return blocks, nil
}

func (d *Disk) layout() layout { return layout{d.cfg.Space, d.cfg.BlockBytes} }

// restore registers the blocks of the log in the folder, if there is one. Blocks that were stored last count as used last.
func (d *Disk) restore() error {
	f, err := os.Open(filepath.Join(d.cfg.Dir, indexName))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()

	found := make([]record, len(d.entries)) // the newest record of each slot
	whole, err := replay(f, d.layout(), func(r record) {
		d.generation = max(d.generation, r.entry.generation)
		if int64(r.slot) < int64(len(found)) && r.entry.generation >= found[r.slot].entry.generation &&
			int64(r.entry.length) <= int64(d.cfg.BlockBytes) {
			found[r.slot] = r
		}
	})
	d.stats.LogDamaged = err != nil || !whole

	found = slices.DeleteFunc(found, func(r record) bool { return r.kind != recordAdd })
	slices.SortFunc(found, func(a, b record) int { return cmp.Compare(a.entry.generation, b.entry.generation) })
	for _, r := range found {
		d.pool.Evict(r.key) // an older block with this key, which was evicted without a record
		if err := d.pool.Adopt(int(r.slot), r.key, r.priority, r.until); err != nil {
			return err
		}
		d.entries[r.slot] = r.entry
	}
	d.stats.Restored = d.pool.Stats().Inactive
	return nil
}
