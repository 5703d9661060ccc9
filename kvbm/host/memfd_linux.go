package host

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The seals of an arena: its size stays, and so do the seals.
const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// create makes a sealed file and maps it. Huge pages that the node does not have make the mapping fail, and not the file.
func create(size int64, huge bool) (*os.File, []byte, error) {
	flags := unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	if huge {
		flags |= unix.MFD_HUGETLB | unix.MFD_HUGE_2MB
	}
	fd, err := unix.MemfdCreate("stator-kv", flags)
	if err != nil {
		return nil, nil, fmt.Errorf("memfd_create: %w", err)
	}
	file := os.NewFile(uintptr(fd), "stator-kv")

	memory, err := sizeAndMap(fd, size)
	if err != nil {
		file.Close()
		return nil, nil, err
	}
	return file, memory, nil
}

func sizeAndMap(fd int, size int64) ([]byte, error) {
	if err := unix.Ftruncate(fd, size); err != nil {
		return nil, fmt.Errorf("ftruncate: %w", err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		return nil, fmt.Errorf("seal: %w", err)
	}
	return mapShared(fd, size)
}

func mapShared(fd int, size int64) ([]byte, error) {
	memory, err := unix.Mmap(fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("mmap: %w", err)
	}
	return memory, nil
}

// attach maps a file that another process made, if its size is sealed and sufficient.
func attach(from *os.File, size int64) (file *os.File, memory []byte, huge bool, err error) {
	fd, err := unix.FcntlInt(from.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, nil, false, fmt.Errorf("duplicate the descriptor: %w", err)
	}
	file = os.NewFile(uintptr(fd), "stator-kv")
	memory, huge, err = checkAndMap(fd, size)
	if err != nil {
		file.Close()
		return nil, nil, false, err
	}
	return file, memory, huge, nil
}

func checkAndMap(fd int, size int64) (memory []byte, huge bool, err error) {
	const fixed = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW
	got, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if errors.Is(err, unix.EINVAL) {
		return nil, false, fmt.Errorf("%w: it is no memfd", ErrSeals)
	}
	if err != nil {
		return nil, false, fmt.Errorf("read the seals: %w", err)
	}
	if got&fixed != fixed {
		return nil, false, fmt.Errorf("%w: it has the seals %#x, and needs F_SEAL_SHRINK and F_SEAL_GROW", ErrSeals, got)
	}

	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return nil, false, fmt.Errorf("stat: %w", err)
	}
	huge = stat.Blksize == hugeBytes
	want := size
	if huge {
		want = (size + hugeBytes - 1) / hugeBytes * hugeBytes
	}
	if stat.Size != want {
		return nil, false, fmt.Errorf("%w: it has %d bytes, and the slots need %d: both sides must have the same configuration",
			ErrSize, stat.Size, want)
	}

	memory, err = mapShared(fd, stat.Size)
	return memory, huge, err
}

// populate provides the pages of memory for writing, and changes none of its bytes.
func populate(memory []byte) error {
	for {
		err := unix.Madvise(memory, unix.MADV_POPULATE_WRITE)
		switch {
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
			continue
		case errors.Is(err, unix.EINVAL): // before Linux 5.14
			for at := 0; at < len(memory); at += os.Getpagesize() {
				atomic.AddUint32((*uint32)(unsafe.Pointer(&memory[at])), 0)
			}
			return nil
		}
		return err
	}
}

func unmap(memory []byte) error { return unix.Munmap(memory) }
