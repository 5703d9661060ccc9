package disk

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// file has the methods that the tier needs of an open file. Tests have others.
type file interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
}

// files opens files. Tests put failures in its place.
type files struct {
	// openBlocks opens the file of the slots, with O_DIRECT or without.
	openBlocks func(path string, direct bool) (*os.File, error)
	// wrap returns the file that the tier reads and writes instead.
	wrap func(name string, f file) file
}

func realFiles() files {
	return files{openBlocks: openBlocks, wrap: func(_ string, f file) file { return f }}
}

// The names in the folder.
const (
	lockName   = "lock"
	blocksName = "blocks"
	indexName  = "index"
	newIndex   = "index.new"
)

// openSlots opens the file of the slots and reserves its bytes. Direct is whether it has O_DIRECT.
func (fs files) openSlots(dir string, size int64) (f *os.File, direct bool, err error) {
	path := filepath.Join(dir, blocksName)
	for _, direct = range []bool{true, false} {
		f, err = fs.openBlocks(path, direct)
		if err == nil {
			err = errors.Join(reserve(f, size), probe(f))
		}
		if err == nil {
			return f, direct, nil
		}
		if f != nil {
			f.Close()
		}
		if !errors.Is(err, syscall.EINVAL) {
			break
		}
	}
	return nil, false, fmt.Errorf("open %s: %w", path, err)
}

// probe reads the first page, because some file systems accept O_DIRECT and refuse to read with it.
func probe(f *os.File) error {
	buf, err := mapBuffer(pageBytes)
	if err != nil {
		return err
	}
	defer unmapBuffer(buf)
	_, err = f.ReadAt(buf, 0)
	return err
}

// reserve makes a file exactly that long, with all its bytes on the disk if the file system can reserve them. The error states how many
// are needed and available, and leaves the file as long as it was.
func reserve(f *os.File, size int64) error {
	before, err := f.Stat()
	if err != nil {
		return err
	}
	allocated, available, err := space(f)
	if err != nil {
		return err
	}
	if needed := size - allocated; needed > available {
		return noSpace(needed, available)
	}

	if err := f.Truncate(size); err != nil {
		return err
	}
	err = allocate(f, size)
	if errors.Is(err, errors.ErrUnsupported) {
		return nil // a full disk shows at the first write
	}
	if err != nil {
		_ = f.Truncate(before.Size())
	}
	if errors.Is(err, syscall.ENOSPC) { // another program was faster
		_, available, _ = space(f)
		return noSpace(size-allocated, available)
	}
	return err
}

func noSpace(needed, available int64) error {
	return fmt.Errorf("%w: %d bytes are needed and %d are available: lower the size of the tier, or make room", ErrNoSpace,
		needed, available)
}

// lockDir locks the folder for this process, until the file is closed. The error names the process that has it.
func lockDir(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}

	err = lockFile(f)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		holder := make([]byte, 20)
		n, _ := f.ReadAt(holder, 0)
		err = fmt.Errorf("%w: process %s: stop it, or give this one another folder", ErrLocked, strings.TrimSpace(string(holder[:n])))
	}
	if err != nil {
		f.Close()
		return nil, err
	}

	if err := f.Truncate(0); err != nil {
		f.Close()
		return nil, err
	}
	if _, err := f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
