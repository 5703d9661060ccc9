//go:build amd64 || arm64

package disk

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// aioFile reads and writes a file with O_DIRECT by the kernel's asynchronous I/O, see io_submit(2). A goroutine in a read or a write that
// blocks keeps a processor of the Go runtime until the runtime takes that away, so with as many goroutines as a disk needs, others wait
// for a processor. Here all wait for a channel, and one goroutine receives the results when an eventfd reports them.
//
//	what fails                                      what happens
//	the kernel has no asynchronous I/O, or no room  openAIO returns an error; the caller uses the file as it is
//	a request is not accepted                       this one is done by pread or pwrite
//	less than all bytes are transferred             the rest is requested
type aioFile struct {
	*os.File
	fd      uint32
	context uintptr
	events  *os.File // the eventfd
	eventFD uint32
	free    chan int // requests that are not in use
	done    []chan int64
	reaper  sync.WaitGroup
}

// aioRequest is the kernel's struct iocb.
type aioRequest struct {
	data      uint64
	_, _      uint32 // a key and flags
	operation uint16
	_         int16 // a priority
	fd        uint32
	buf       uint64
	bytes     uint64
	offset    int64
	_         uint64
	options   uint32
	eventFD   uint32
}

// aioEvent is the kernel's struct io_event.
type aioEvent struct {
	data, request   uint64
	result, result2 int64
}

// The operations of a request, and the option by which its end is reported to an eventfd.
const (
	aioRead    = 0
	aioWrite   = 1
	aioEventFD = 1
)

// openAIO returns a file that takes so many requests at once. After an error the file is as it was.
func openAIO(f *os.File, most int) (*aioFile, error) {
	events, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("make an eventfd: %w", err)
	}
	a := &aioFile{
		File: f, fd: uint32(f.Fd()), events: os.NewFile(uintptr(events), "eventfd"), eventFD: uint32(events), free: make(chan int, most),
	}
	if _, _, errno := unix.Syscall(unix.SYS_IO_SETUP, uintptr(most), uintptr(unsafe.Pointer(&a.context)), 0); errno != 0 {
		_ = a.events.Close()
		return nil, fmt.Errorf("set up asynchronous I/O: %w", errno)
	}
	for i := range most {
		a.free <- i
		a.done = append(a.done, make(chan int64, 1))
	}
	a.reaper.Go(a.reap)
	return a, nil
}

// Close closes the file. No request may be in progress.
func (a *aioFile) Close() error {
	err := a.events.Close() // ends reap
	a.reaper.Wait()
	_, _, _ = unix.Syscall(unix.SYS_IO_DESTROY, a.context, 0, 0) // it has no requests
	return errors.Join(err, a.File.Close())
}

// ReadAt implements io.ReaderAt for memory and offsets that O_DIRECT accepts.
func (a *aioFile) ReadAt(p []byte, offset int64) (n int, err error) {
	n, err = a.transfer(aioRead, p, offset)
	if err == nil && n < len(p) {
		err = io.EOF
	}
	if errors.Is(err, syscall.EAGAIN) {
		return a.File.ReadAt(p, offset)
	}
	return n, err
}

// WriteAt implements io.WriterAt for memory and offsets that O_DIRECT accepts.
func (a *aioFile) WriteAt(p []byte, offset int64) (n int, err error) {
	n, err = a.transfer(aioWrite, p, offset)
	if err == nil && n < len(p) {
		err = io.ErrShortWrite
	}
	if errors.Is(err, syscall.EAGAIN) {
		return a.File.WriteAt(p, offset)
	}
	return n, err
}

// transfer reads or writes all bytes, or as many as there are. The error is EAGAIN if the kernel has no room for the request.
func (a *aioFile) transfer(operation uint16, p []byte, offset int64) (n int, err error) {
	i := <-a.free
	defer func() { a.free <- i }()
	for n < len(p) {
		err := a.submit(i, operation, p[n:], offset+int64(n))
		if err != nil {
			return n, err
		}
		result := <-a.done[i]
		runtime.KeepAlive(p)
		switch {
		case result < 0:
			return n, syscall.Errno(-result)
		case result == 0:
			return n, nil
		}
		n += int(result)
	}
	return n, nil
}

// submit hands a request to the kernel, which has copied it on return. Its result comes to done[i].
func (a *aioFile) submit(i int, operation uint16, p []byte, offset int64) error {
	request := &aioRequest{
		data: uint64(i), operation: operation, fd: a.fd, buf: uint64(uintptr(unsafe.Pointer(&p[0]))), bytes: uint64(len(p)),
		offset: offset, options: aioEventFD, eventFD: a.eventFD,
	}
	for {
		n, _, errno := unix.Syscall(unix.SYS_IO_SUBMIT, a.context, 1, uintptr(unsafe.Pointer(&request)))
		switch {
		case n == 1:
			return nil
		case errno == unix.EINTR:
			continue
		case errno == 0:
			return syscall.EAGAIN
		}
		return errno
	}
}

// reap receives results until the eventfd is closed.
func (a *aioFile) reap() {
	var counter [8]byte
	events := make([]aioEvent, cap(a.free))
	for {
		if _, err := a.events.Read(counter[:]); err != nil {
			return
		}
		for n := len(events); n == len(events); {
			n = a.receive(events)
			for _, e := range events[:n] {
				a.done[e.data] <- e.result
			}
		}
	}
}

// receive returns how many results there are, without waiting. It is called again after the eventfd has reported more.
func (a *aioFile) receive(events []aioEvent) int {
	var now unix.Timespec
	for {
		n, _, errno := unix.Syscall6(unix.SYS_IO_GETEVENTS, a.context, 0, uintptr(len(events)), uintptr(unsafe.Pointer(&events[0])),
			uintptr(unsafe.Pointer(&now)), 0)
		switch errno {
		case 0:
			return int(n)
		case unix.EINTR:
			continue
		}
		return 0
	}
}
