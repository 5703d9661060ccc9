package main

import (
	"encoding/binary"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// The faults that a store's answer to a fetch meets on its way to an engine.
const (
	faultShort = iota // fewer blocks, which the protocol allows
	faultNone         // no blocks
	faultSlow         // the answer comes after up to a second
	faultLate         // the answer comes after the engine has given up
	faultEnd          // the session ends
	faultKinds
)

var faultNames = [faultKinds]string{"with half of the blocks", "without blocks", "up to 1 s late", "6 s late", "ended the session"}

// The frames of a session, which package kvbm/session describes.
const (
	frameHead  = 9
	frameFetch = 3
	fetchHead  = frameHead + 8 // and a lease, and a count of slots
)

// storeProxy passes sessions between engines and a store on, with faults while it is faulty.
type storeProxy struct {
	path, store string
	listener    *net.UnixListener
	faulty      atomic.Bool
	counts      [faultKinds]atomic.Int64
	late        sync.WaitGroup // answers that are held back

	mu  sync.Mutex
	rng *rand.Rand // guarded by mu
}

// startStoreProxy listens at a path for engines of the store at another one.
func startStoreProxy(path, store string, seed uint64) (*storeProxy, error) {
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	p := &storeProxy{path: path, store: store, listener: listener, rng: rand.New(rand.NewPCG(seed, 5))}
	go p.accept()
	return p, nil
}

func (p *storeProxy) stop() { _ = p.listener.Close() }

func (p *storeProxy) accept() {
	for {
		engine, err := p.listener.AcceptUnix()
		if err != nil {
			return // stopped
		}
		go p.serve(engine)
	}
}

// serve passes one session on until a side ends it.
func (p *storeProxy) serve(engine *net.UnixConn) {
	defer func() { _ = engine.Close() }()
	store, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: p.store, Net: "unix"})
	if err != nil {
		return
	}
	defer func() { _ = store.Close() }()
	go func() {
		_, _ = io.Copy(store, engine)
		_ = store.Close()
	}()

	if err := passWelcome(store, engine); err != nil {
		return
	}
	var writing sync.Mutex
	for {
		frame, err := readStoreFrame(store)
		if err != nil {
			return
		}
		if frame[4] == frameFetch && p.faulty.Load() {
			p.late.Go(func() { p.passFaulty(engine, &writing, frame) })
			continue
		}
		if !writeFrame(engine, &writing, frame) {
			return
		}
	}
}

// passWelcome passes the store's first frame on, which comes with the descriptor of its memory, in one message.
func passWelcome(store, engine *net.UnixConn) error {
	frame, oob := make([]byte, 64<<10), make([]byte, unix.CmsgSpace(4))
	n, oobn, _, _, err := store.ReadMsgUnix(frame, oob)
	if err != nil {
		return err
	}
	messages, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil {
		return err
	}
	var rights []byte
	for i := range messages {
		descriptors, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			return err
		}
		rights = append(rights, unix.UnixRights(descriptors...)...)
		for _, fd := range descriptors {
			defer func() { _ = unix.Close(fd) }()
		}
	}
	_, _, err = engine.WriteMsgUnix(frame[:n], rights, nil)
	return err
}

// readStoreFrame reads a whole frame.
func readStoreFrame(store io.Reader) ([]byte, error) {
	head := make([]byte, frameHead)
	if _, err := io.ReadFull(store, head); err != nil {
		return nil, err
	}
	frame := make([]byte, 4+binary.LittleEndian.Uint32(head))
	copy(frame, head)
	_, err := io.ReadFull(store, frame[frameHead:])
	return frame, err
}

func writeFrame(engine *net.UnixConn, writing *sync.Mutex, frame []byte) bool {
	writing.Lock()
	defer writing.Unlock()
	_, err := engine.Write(frame)
	return err == nil
}

// passFaulty passes the answer to a fetch on with a fault. Every answer takes some time, in which clients may leave.
func (p *storeProxy) passFaulty(engine *net.UnixConn, writing *sync.Mutex, frame []byte) {
	p.mu.Lock()
	kind := p.rng.IntN(4)
	if p.rng.IntN(20) == 0 {
		kind = faultEnd
	} else if kind == faultLate && p.rng.IntN(3) > 0 {
		kind = faultShort
	}
	wait := time.Duration(p.rng.IntN(300)) * time.Millisecond
	more := time.Duration(p.rng.IntN(700)) * time.Millisecond
	p.mu.Unlock()

	p.counts[kind].Add(1)
	switch kind {
	case faultShort, faultNone:
		slots := (len(frame) - fetchHead) / 4
		if kind == faultShort {
			slots /= 2
		} else {
			slots = 0
		}
		frame = frame[:fetchHead+4*slots]
		binary.LittleEndian.PutUint32(frame, uint32(len(frame)-4))
		binary.LittleEndian.PutUint32(frame[fetchHead-4:], uint32(slots))
	case faultSlow:
		wait += more
	case faultLate:
		wait = 6 * time.Second
	}

	time.Sleep(wait)
	if kind == faultEnd {
		_ = engine.Close()
		return
	}
	writeFrame(engine, writing, frame)
}

// faults sums the faults of all kinds.
func (p *storeProxy) faults() (n int) {
	for i := range p.counts {
		n += int(p.counts[i].Load())
	}
	return n
}
