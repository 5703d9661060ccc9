package main

import (
	"io"
	"os"
	"sync"
	"syscall"
)

// disk stands for the disk of a router's decision log: a pipe, whose bytes go to a file of the same name with ".read" after it. It can
// stand still, and it can be full: then the path leads to /dev/full, which a router opens at its next start.
type disk struct {
	path string
	pipe *os.File
	gate sync.Mutex // held while the disk stands still
	all  sync.WaitGroup
}

func newDisk(path string) (*disk, error) {
	d := &disk{path: path}
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		return nil, &os.PathError{Op: "make a pipe", Path: path, Err: err}
	}
	// A pipe that is open for writing, too, has no end when a router leaves.
	pipe, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	kept, err := os.Create(path + ".read")
	if err != nil {
		_ = pipe.Close()
		return nil, err
	}

	d.pipe = pipe
	d.all.Go(func() {
		defer func() { _ = kept.Close() }()
		_, _ = io.Copy(kept, gatedReader{pipe, &d.gate})
	})
	return d, nil
}

// gatedReader reads while the gate is free.
type gatedReader struct {
	io.Reader
	gate *sync.Mutex
}

func (r gatedReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	r.gate.Lock()
	defer r.gate.Unlock()
	return n, err
}

// setFull has the path lead to a full disk, or to the pipe again. A router keeps the file that it has open.
func (d *disk) setFull(full bool) error {
	aside := d.path + ".pipe"
	if !full {
		return os.Rename(aside, d.path)
	}
	if err := os.Rename(d.path, aside); err != nil {
		return err
	}
	return os.Symlink("/dev/full", d.path)
}

func (d *disk) close() {
	_ = d.pipe.Close()
	d.all.Wait()
}
