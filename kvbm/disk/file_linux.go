package disk

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// openBlocks opens or makes the file of the slots.
func openBlocks(path string, direct bool) (*os.File, error) {
	flags := os.O_RDWR | os.O_CREATE
	if direct {
		flags |= unix.O_DIRECT
	}
	return os.OpenFile(path, flags, 0o600)
}

// space returns how many bytes of a file are on the disk, and how many more its file system has for this process.
func space(f *os.File) (allocated, available int64, err error) {
	var file unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &file); err != nil {
		return 0, 0, fmt.Errorf("stat: %w", err)
	}
	var system unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &system); err != nil {
		return 0, 0, fmt.Errorf("statfs: %w", err)
	}
	return file.Blocks * 512, int64(system.Bavail) * system.Bsize, nil
}

// allocate reserves the bytes of a file on the disk.
func allocate(f *os.File, size int64) error {
	for {
		err := unix.Fallocate(int(f.Fd()), 0, 0, size)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOSYS):
			return errors.ErrUnsupported
		case err != nil:
			return fmt.Errorf("reserve %d bytes: %w", size, err)
		}
		return nil
	}
}

func lockFile(f *os.File) error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) }

// mapBuffer returns memory that O_DIRECT accepts: whole pages outside of the heap.
func mapBuffer(size int) ([]byte, error) {
	buf, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes of memory: %w", size, err)
	}
	return buf, nil
}

func unmapBuffer(buf []byte) { _ = unix.Munmap(buf) }

// syncDir makes the names in a folder outlive a power failure.
func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}
