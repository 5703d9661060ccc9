package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/stator-project/stator/kvbm/host"
	"github.com/stator-project/stator/nixl/transfer"
	"github.com/stator-project/stator/nixl/wire"
)

// link copies blocks between two sides, by NIXL and by Go.
type link struct {
	name, own   string
	here, there []byte
	// mu guards there, which the far end of a stream uses in a goroutine.
	mu sync.Mutex
	// byNIXL and byGo copy all blocks from there to here, or to there with write.
	byNIXL, byGo func(ctx context.Context, write bool) error
	closers      []func()
}

func (l *link) close() {
	for _, c := range l.closers {
		c()
	}
}

// round fills the source with bytes that no round before had, copies them, and compares both sides.
func (l *link) round(ctx context.Context, write bool, seed uint64, by func(context.Context, bool) error) (took time.Duration, err error) {
	l.fill(write, seed)
	begin := time.Now()
	err = by(ctx, write)
	took = time.Since(begin)
	if err != nil {
		return 0, err
	}
	return took, l.compare()
}

// fill writes the source of a copy.
func (l *link) fill(write bool, seed uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	source := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
	if write {
		_, _ = source.Read(l.here)
	} else {
		_, _ = source.Read(l.there)
	}
}

// errBytes is the error of a copy with wrong bytes.
var errBytes = errors.New("the copied bytes differ from their source")

// compare checks that both sides have the same bytes.
func (l *link) compare() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !bytes.Equal(l.here, l.there) {
		return errBytes
	}
	return nil
}

// side is a helper with its memory.
type side struct {
	helper *transfer.Helper
	arena  *host.Arena
	memory []byte // the blocks, without gaps
}

// openSide starts a child with memory for the slots of the configuration.
func openSide(ctx context.Context, cfg transfer.Config) (*side, error) {
	arena, err := host.New(host.Config{Slots: 1, SlotBytes: cfg.Slots * cfg.Layout.Bytes()})
	if err != nil {
		return nil, err
	}
	s := &side{arena: arena, memory: arena.Slot(0)}
	cfg.Memory = arena.File()
	s.helper, err = transfer.Start(ctx, cfg)
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *side) close() {
	if s.helper != nil {
		s.helper.Close()
	}
	_ = s.arena.Close() // nothing can be done about it
}

// blocks returns the slots of a transfer of all blocks.
func blocks(n int) []int32 {
	list := make([]int32, n)
	for i := range list {
		list[i] = int32(i)
	}
	return list
}

// byHelper returns a function that copies with NIXL.
func byHelper(h *transfer.Helper, peer string, batch int) func(context.Context, bool) error {
	return func(ctx context.Context, write bool) error {
		return h.Transfer(ctx, transfer.Transfer{
			Peer: peer, Write: write, Local: blocks(batch), Remote: blocks(batch), Timeout: roundTimeout,
		})
	}
}

// way is a way on which UCX reaches peers: its parameters, and environment variables for the child.
type way struct {
	backend wire.Backend
	env     []string
}

// sharedMemory has UCX use the memory of the host. It switches off UCX's detection of dead peers, which these transports lack.
func sharedMemory() way {
	return way{
		wire.Backend{Plugin: "UCX", Params: map[string]string{"ucx_error_handling_mode": "none"}},
		[]string{"UCX_TLS=posix,sysv,cma,self"},
	}
}

// tcp has UCX use TCP on a network device such as eth0.
func tcp(device string) way {
	return way{transfer.Network(), []string{"UCX_TLS=tcp", "UCX_NET_DEVICES=" + device}}
}

// openPair starts two children that reach each other by UCX.
func openPair(ctx context.Context, l *link, cfg *Config, size int, transport way) error {
	a, err := openSide(ctx, cfg.config("probe-a", size, transport))
	if err != nil {
		return err
	}
	l.closers = append(l.closers, a.close)
	b, err := openSide(ctx, cfg.config("probe-b", size, transport))
	if err != nil {
		return err
	}
	l.closers = append(l.closers, b.close)

	peer, err := a.helper.AddPeer(ctx, b.helper.Endpoint())
	if err != nil {
		return err
	}
	l.here, l.there = a.memory, b.memory
	l.byNIXL = byHelper(a.helper, peer, cfg.Batch)
	return nil
}

// The names of links.
const (
	SharedMemory = "shared memory"
	TCP          = "TCP"
)

// openShared opens UCX over shared memory, beside copy.
func openShared(ctx context.Context, cfg *Config, size int) (*link, error) {
	l := &link{name: SharedMemory, own: "copy() of a shared mapping"}
	if err := openPair(ctx, l, cfg, size, sharedMemory()); err != nil {
		l.close()
		return l, err
	}
	l.byGo = func(_ context.Context, write bool) error {
		if write {
			copy(l.there, l.here)
		} else {
			copy(l.here, l.there)
		}
		return nil
	}
	return l, nil
}

// openTCP opens UCX over TCP, beside a stream on loopback.
func openTCP(ctx context.Context, cfg *Config, size int) (*link, error) {
	l := &link{name: TCP, own: "Go TCP on loopback"}
	err := openPair(ctx, l, cfg, size, tcp(cfg.Device))
	if err == nil {
		l.byGo, err = l.stream(size)
	}
	if err != nil {
		l.close()
	}
	return l, err
}

// stream connects two ends by TCP. The far end waits for a byte: 'r' has it send all blocks, and after 'w' it receives them and
// answers with a byte.
func (l *link) stream(size int) (func(context.Context, bool) error, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer listener.Close()
	near, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		return nil, err
	}
	far, err := listener.Accept()
	if err != nil {
		_ = near.Close()
		return nil, err
	}

	done := make(chan struct{})
	go func() {
		defer close(done)
		l.serve(far, size)
	}()
	// The stream ends before the memory is unmapped, so this closer is the first.
	l.closers = append([]func(){func() { _ = near.Close(); <-done }}, l.closers...)
	return func(_ context.Context, write bool) error {
		_ = near.SetDeadline(time.Now().Add(roundTimeout))
		if !write {
			if _, err := near.Write([]byte("r")); err != nil {
				return err
			}
			_, err := io.ReadFull(near, l.here)
			return err
		}

		buffers := append(net.Buffers{[]byte("w")}, split(l.here, size)...)
		if _, err := buffers.WriteTo(near); err != nil {
			return err
		}
		_, err := io.ReadFull(near, make([]byte, 1))
		return err
	}, nil
}

// serve is the far end of a stream, until the connection ends.
func (l *link) serve(far net.Conn, size int) {
	defer far.Close()
	for command := make([]byte, 1); ; {
		if _, err := io.ReadFull(far, command); err != nil {
			return
		}
		if err := l.execute(far, command, size); err != nil {
			return
		}
	}
}

// execute sends all blocks, or receives them and answers.
func (l *link) execute(far net.Conn, command []byte, size int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if command[0] == 'r' {
		buffers := split(l.there, size)
		_, err := buffers.WriteTo(far)
		return err
	}
	if _, err := io.ReadFull(far, l.there); err != nil {
		return err
	}
	_, err := far.Write(command)
	return err
}

// split returns the blocks of a memory.
func split(memory []byte, size int) (list net.Buffers) {
	for at := 0; at < len(memory); at += size {
		list = append(list, memory[at:at+size])
	}
	return list
}
