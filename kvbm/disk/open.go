package disk

import (
	"fmt"
	"os"

	"github.com/stator-project/stator/internal/backoff"
	"github.com/stator-project/stator/kvbm/pool"
)

// Open opens the tier in a folder, with the blocks that it had. Errors are ErrLocked, ErrNoSpace, errors of the configuration and errors
// of the file system. Call Close.
func Open(cfg Config) (*Disk, error) {
	if err := cfg.setDefaults(); err != nil {
		return nil, fmt.Errorf("open the disk tier: %w", err)
	}

	d := &Disk{cfg: cfg, stride: int64(headerBytes + padded(cfg.BlockBytes))}
	if err := d.open(); err != nil {
		_ = d.closeFiles()
		return nil, fmt.Errorf("open the disk tier in %s: %w", cfg.Dir, err)
	}

	d.reads = newLane(d.memory[:cfg.Workers], cfg.Queue, d.loadBlock)
	d.writes = newLane(d.memory[cfg.Workers:], cfg.Queue, d.write)
	return d, nil
}

func (d *Disk) open() error {
	if err := os.MkdirAll(d.cfg.Dir, 0o700); err != nil {
		return err
	}
	lock, err := lockDir(d.cfg.Dir)
	if err != nil {
		return err
	}
	d.lock = lock

	slots := d.cfg.slots()
	blocks, direct, err := d.cfg.files.openSlots(d.cfg.Dir, slots*d.stride)
	if err != nil {
		return err
	}
	d.blocks = blocks
	d.stats.Direct = direct
	if direct {
		if a, err := openAIO(blocks, 2*d.cfg.Workers); err == nil {
			d.blocks = a
			d.stats.Async = true
		}
	}
	d.blocks = d.cfg.files.wrap(blocksName, d.blocks)

	for range 2 * d.cfg.Workers {
		buf, err := mapBuffer(int(d.stride))
		if err != nil {
			return err
		}
		d.memory = append(d.memory, buf)
	}
	return d.openIndex(int(slots))
}

// openIndex registers the blocks of the log, and begins a new one.
func (d *Disk) openIndex(slots int) error {
	d.log.idle.L = &d.mu
	d.pool = pool.New(slots)
	d.entries = make([]entry, slots)
	d.log.pending = newBatch()
	d.log.spare = newBatch()
	d.health.pause = backoff.Backoff{Min: leastPause, Max: mostPause}

	// A new log has one record for each slot, so the next one follows after three more for each, or more.
	d.log.most = logHeader + max(leastLog, 4*int64(slots)*recordBytes)
	// Generations begin with the time, so that they are new even if the log was lost.
	d.generation = uint64(d.cfg.Now().UnixNano())

	if err := d.restore(); err != nil {
		return err
	}
	return d.rewriteLog()
}

// Close waits for operations in progress, and writes the rest of the log. Operations that begin later return ErrClosed. It waits
// as long as the disk does.
func (d *Disk) Close() error {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return ErrClosed
	}
	d.closed = true
	d.mu.Unlock()

	d.calls.Wait()
	d.reads.stop()
	d.writes.stop()
	d.writeLog()
	return d.closeFiles()
}

// closeFiles closes the open files. The lock is the last.
func (d *Disk) closeFiles() error {
	for _, buf := range d.memory {
		unmapBuffer(buf)
	}
	d.memory = nil

	var first error
	for _, f := range []file{d.log.out.f, d.blocks, d.lock} {
		if f == nil {
			continue
		}
		if err := f.Close(); err != nil && first == nil {
			first = err
		}
	}
	return first
}
