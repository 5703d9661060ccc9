//go:build linux

package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/stator-project/stator/internal/kv/block"
	"github.com/stator-project/stator/kvbm/disk"
)

// depth is the number of goroutines of the bare loop, with which the device is fastest. The tier has its default of goroutines, and callers
// keep them busy.
const (
	depth   = 16
	callers = 64
)

// benchDisk stores blocks into a full tier, so that each evicts another one, and loads random ones. The bare loop writes and reads
// random blocks of a file of the same size. Both files are on the disk entirely before the first round. The place of a file on the disk
// decides its speed, so the rounds are spread over pairs of new files.
func benchDisk(ctx context.Context, o options) (rows []row, err error) {
	pairs := min(o.rounds, 5)
	for _, size := range blockSizes {
		writes, reads := row{name: "write", blockBytes: size}, row{name: "read", blockBytes: size}
		for i := range pairs {
			share := o
			share.rounds = o.rounds*(i+1)/pairs - o.rounds*i/pairs
			if err := benchFiles(ctx, share, &writes, &reads); err != nil {
				return nil, err
			}
		}
		rows = append(rows, writes, reads)
	}
	return rows, nil
}

// benchFiles adds the rounds of one pair of files to the rows of a block size.
func benchFiles(ctx context.Context, o options, writes, reads *row) error {
	dir, err := os.MkdirTemp(o.dir, "benchblocks-")
	if err != nil {
		return err
	}
	of, err := benchBlockSize(ctx, o, dir, writes.blockBytes)
	if err := errors.Join(err, os.RemoveAll(dir)); err != nil {
		return err
	}
	for i, r := range []*row{writes, reads} {
		r.tier = append(r.tier, of[i].tier...)
		r.bare = append(r.bare, of[i].bare...)
	}
	return nil
}

func benchBlockSize(ctx context.Context, o options, dir string, size int) ([]row, error) {
	tier, err := newDiskTier(filepath.Join(dir, "tier"), o.bytes, size)
	if err != nil {
		return nil, err
	}
	defer tier.disk.Close()
	direct := tier.disk.Stats().Direct
	if !direct && !o.quick {
		return nil, fmt.Errorf("%s has no O_DIRECT: name a folder on a disk with --dir", o.dir)
	}
	bare, err := newBareFile(filepath.Join(dir, "bare"), o.bytes, size, direct)
	if err != nil {
		return nil, err
	}
	defer bare.close()

	for _, fill := range []func(worker, n int) error{tier.store, bare.fill} {
		for n := range bare.blocks {
			if err := fill(0, n); err != nil {
				return nil, err
			}
		}
	}

	writes, err := compare(ctx, o, "write", size, side{callers, tier.store}, side{depth, bare.write})
	if err != nil {
		return nil, err
	}
	reads, err := compare(ctx, o, "read", size, side{callers, tier.load}, side{depth, bare.read})
	return []row{writes, reads}, err
}

// diskTier stores blocks with new keys, and loads those that it stored last.
type diskTier struct {
	disk    *disk.Disk
	slots   int
	stored  atomic.Int64
	buffers [callers][]byte
}

func newDiskTier(dir string, bytes int64, size int) (*diskTier, error) {
	d, err := disk.Open(disk.Config{Dir: dir, Bytes: bytes, BlockBytes: size})
	if err != nil {
		return nil, err
	}
	t := &diskTier{disk: d, slots: d.Stats().Slots.Reset}
	for i := range t.buffers {
		t.buffers[i] = make([]byte, size)
		for at := 0; at < size; at += 8 {
			binary.LittleEndian.PutUint64(t.buffers[i][at:], rand.Uint64())
		}
	}
	return t, nil
}

func keyOf(n int64) block.Key {
	var space block.Space
	var content [8]byte
	binary.LittleEndian.PutUint64(content[:], uint64(n))
	return space.Key(content[:])
}

func (t *diskTier) store(worker, _ int) error {
	return t.disk.Store(context.Background(), keyOf(t.stored.Add(1)), t.buffers[worker], 0)
}

// load reads one of the blocks that are certainly there: workers may have finished the latest ones in any order.
func (t *diskTier) load(worker, _ int) error {
	back := int64(callers + rand.IntN(t.slots-2*callers))
	return t.disk.Load(context.Background(), keyOf(t.stored.Load()-back), t.buffers[worker])
}

// bareFile is a file that is read and written without a tier.
type bareFile struct {
	fd, blocks, size int
	buffers          [depth][]byte
}

func newBareFile(path string, bytes int64, size int, direct bool) (*bareFile, error) {
	flags := unix.O_RDWR | unix.O_CREAT | unix.O_CLOEXEC
	if direct {
		flags |= unix.O_DIRECT
	}
	fd, err := unix.Open(path, flags, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	f := &bareFile{fd: fd, blocks: int(bytes) / size, size: size}
	if err := unix.Fallocate(fd, 0, 0, bytes); err != nil {
		f.close()
		return nil, fmt.Errorf("reserve %d bytes: %w", bytes, err)
	}

	for i := range f.buffers {
		f.buffers[i], err = unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
		if err != nil {
			f.close()
			return nil, err
		}
		for at := 0; at < size; at += 8 {
			binary.LittleEndian.PutUint64(f.buffers[i][at:], rand.Uint64())
		}
	}
	return f, nil
}

func (f *bareFile) fill(worker, n int) error {
	_, err := unix.Pwrite(f.fd, f.buffers[worker], int64(n)*int64(f.size))
	return err
}

func (f *bareFile) write(worker, _ int) error { return f.fill(worker, rand.IntN(f.blocks)) }

func (f *bareFile) read(worker, _ int) error {
	_, err := unix.Pread(f.fd, f.buffers[worker], int64(rand.IntN(f.blocks))*int64(f.size))
	return err
}

func (f *bareFile) close() {
	for _, b := range f.buffers {
		_ = unix.Munmap(b)
	}
	unix.Close(f.fd)
}
