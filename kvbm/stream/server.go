package stream

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stator-project/stator/internal/backoff"
	"github.com/stator-project/stator/internal/kv/block"
)

// Block is a block of a Source.
type Block struct {
	// Data is nil if the block is missing.
	Data []byte
	// Sum is the CRC32C of Data, and Generation the generation of the slot.
	Sum        uint32
	Generation uint64
}

// Source has the blocks that a server sends.
type Source interface {
	// Acquire returns a block for each key. Their bytes do not change until release is called, which happens once.
	Acquire(keys []block.Key) (blocks []Block, release func())
}

// ServerConfig configures a server. Token, Node, Layout and Source have no default.
type ServerConfig struct {
	// Token is the secret that all nodes share, with at least 16 characters.
	Token string
	// Node is this node's name, with at most 255 bytes.
	Node string
	// Layout is the layout of the blocks. Clients must have the same.
	Layout block.Layout
	Source Source
	// Summary returns the summary of the source, of at most [MostSummary] bytes, unless the client has that version already: then content
	// is nil. Without it the version is 0, and there is no content.
	Summary func(has uint64) (version uint64, content []byte)
	// Calls returns what answers the calls of a connection. Without it none are answered.
	Calls func() Calls

	Log *slog.Logger

	// Connections bounds connections (64), and Requests the requests of each that wait (16).
	Connections, Requests int
	// WriteBytes bounds the blocks of one write, which are held meanwhile (4 MiB, and at least a block). InFlight bounds the credit of a
	// connection (64 MiB, and at least a block).
	WriteBytes, InFlight int
	// HandshakeTimeout bounds the handshake (5 s), IdleTimeout the time without a frame (5 min), and WriteTimeout a write (10 s).
	HandshakeTimeout, IdleTimeout, WriteTimeout time.Duration
}

func setDefault[T int | time.Duration](v *T, value T) {
	if *v == 0 {
		*v = value
	}
}

// mostBusy bounds the requests that wait to be answered as busy. A client with more of them does not wait for answers.
const mostBusy = 256

// acceptPause is the pause after a failure to accept a connection.
const acceptPause = 100 * time.Millisecond

// mostGreeting bounds connections during their handshake. Above it, the oldest one of the address with most of them is closed.
const mostGreeting = 64

// Server sends blocks to clients.
type Server struct {
	cfg   ServerConfig
	bytes int // of a block
	tls   *tls.Config

	open    atomic.Int64 // connections after their handshake
	counted serverCounters

	mu       sync.Mutex
	greeting []net.Conn // guarded by mu; connections during their handshake, the oldest first
}

type serverCounters struct {
	acceptErrors, accepted, refused, requests, blocks, missing, busy atomic.Int64
}

// ServerStats are a server's counts since it was made.
type ServerStats struct {
	// Open is the number of connections now.
	Open int64
	// Accepted counts connections after their handshake, and Refused connections that ended before it.
	Accepted, Refused int64
	// AcceptErrors counts failures to accept a connection, such as for lack of file descriptors.
	AcceptErrors int64
	// Requests, Blocks, Missing and Busy count requests, blocks sent, blocks that were not there, and requests that were one too many.
	Requests, Blocks, Missing, Busy int64
}

// NewServer checks the configuration.
func NewServer(cfg ServerConfig) (*Server, error) {
	if err := checkIdentity(cfg.Token, cfg.Node, &cfg.Layout); err != nil {
		return nil, fmt.Errorf("make stream server: %w", err)
	}
	if cfg.Source == nil {
		return nil, fmt.Errorf("make stream server: it needs a source")
	}
	size := cfg.Layout.Bytes()
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	setDefault(&cfg.Connections, 64)
	setDefault(&cfg.Requests, 16)
	setDefault(&cfg.WriteBytes, 4<<20)
	setDefault(&cfg.InFlight, 64<<20)
	setDefault(&cfg.HandshakeTimeout, 5*time.Second)
	setDefault(&cfg.IdleTimeout, 5*time.Minute)
	setDefault(&cfg.WriteTimeout, 10*time.Second)
	cfg.WriteBytes = max(cfg.WriteBytes, size)
	cfg.InFlight = max(cfg.InFlight, size)
	certificate, err := newCertificate()
	if err != nil {
		return nil, fmt.Errorf("make stream server: %w", err)
	}
	secure := &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{certificate}, SessionTicketsDisabled: true}
	return &Server{cfg: cfg, bytes: size, tls: secure}, nil
}

// Stats returns the current values.
func (s *Server) Stats() ServerStats {
	c := &s.counted
	return ServerStats{Open: s.open.Load(), Accepted: c.accepted.Load(), Refused: c.refused.Load(),
		AcceptErrors: c.acceptErrors.Load(), Requests: c.requests.Load(), Blocks: c.blocks.Load(), Missing: c.missing.Load(),
		Busy: c.busy.Load()}
}

// Serve accepts connections until ctx ends, and returns when all have ended. It closes the listener. The error is non-nil only if someone
// else has closed the listener. Other failures to accept are counted, and Serve goes on; it logs the first of several in a row.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = ln.Close() })
	defer stop()
	var connections sync.WaitGroup
	defer connections.Wait()
	defer cancel()

	failing := false
	for {
		conn, err := ln.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			if errors.Is(err, net.ErrClosed) {
				return fmt.Errorf("accept peers: %w", err)
			}
			if !failing {
				s.cfg.Log.Warn("the KV store cannot accept a connection of another node, and tries again", "err", err)
			}
			failing = true
			s.counted.acceptErrors.Add(1)
			_ = backoff.Sleep(ctx, acceptPause)
			continue
		}
		failing = false
		s.greet(conn)
		connections.Go(func() {
			stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
			defer stop()
			defer func() { _ = conn.Close() }()
			s.handle(ctx, conn)
		})
	}
}

// greet enters a connection whose handshake begins. If there are too many, it closes another one, so that the connections of one address
// do not keep others out.
func (s *Server) greet(conn net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.greeting = append(s.greeting, conn)
	if len(s.greeting) <= mostGreeting {
		return
	}

	count := map[string]int{}
	most := 0
	for _, c := range s.greeting {
		host := hostOf(c)
		count[host]++
		most = max(most, count[host])
	}
	i := slices.IndexFunc(s.greeting, func(c net.Conn) bool { return count[hostOf(c)] == most })
	_ = s.greeting[i].Close()
	s.greeting = slices.Delete(s.greeting, i, i+1)
}

// hostOf returns the host of the other side, without its port.
func hostOf(conn net.Conn) string {
	address := conn.RemoteAddr().String()
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	return host
}

// greeted removes a connection whose handshake has ended.
func (s *Server) greeted(conn net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.greeting, conn); i >= 0 {
		s.greeting = slices.Delete(s.greeting, i, i+1)
	}
}

// admit takes a client that has the token, or refuses it.
func (s *Server) admit(client *hello) error {
	if err := s.cfg.Layout.Fits(client.Layout); err != nil {
		return err
	}
	if s.open.Add(1) > int64(s.cfg.Connections) {
		s.open.Add(-1)
		return fmt.Errorf("%w: raise its bound of %d", ErrFull, s.cfg.Connections)
	}
	return nil
}

// handle serves one connection.
func (s *Server) handle(ctx context.Context, raw net.Conn) {
	conn := tls.Server(raw, s.tls)
	admitted := false
	_ = conn.SetDeadline(time.Now().Add(s.cfg.HandshakeTimeout))
	err := greetClient(conn, s.cfg.Token, s.cfg.Node, s.cfg.Calls != nil, func(client *hello) error {
		err := s.admit(client)
		admitted = err == nil
		return err
	})
	s.greeted(raw)
	if admitted {
		defer s.open.Add(-1)
	}
	if err != nil {
		s.counted.refused.Add(1)
		return
	}
	_ = conn.SetDeadline(time.Time{})
	s.counted.accepted.Add(1)

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	session := &session{server: s, conn: conn, wake: make(chan struct{}, 1)}
	if s.cfg.Calls != nil {
		session.calls = s.cfg.Calls()
		defer session.calls.Close()
	}
	var writer sync.WaitGroup
	writer.Go(func() {
		session.write(ctx)
		_ = raw.Close() // which ends the reader
	})
	session.readFrames()
	cancel()
	_ = raw.Close()
	writer.Wait()
}
