package stream_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	mathrand "math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/kv/block"
	"github.com/stator-project/stator/kvbm/stream"
	"github.com/stator-project/stator/test/testkit"
	"go.uber.org/goleak"
)

const token = "a token of sixteen characters or more"

// layout has blocks of 64 KiB.
var layout = block.Layout{Model: "m", Layers: 4, PageTokens: 16, Outer: 2, Inner: 256, DType: "float16", TPSize: 1}

// memory is a source with blocks in memory.
type memory struct {
	blocks map[block.Key]stream.Block
	held   atomic.Int64 // blocks between Acquire and release
	most   atomic.Int64 // of held
	calls  atomic.Int64
}

func (m *memory) Acquire(keys []block.Key) ([]stream.Block, func()) {
	m.calls.Add(1)
	if n := m.held.Add(int64(len(keys))); n > m.most.Load() {
		m.most.Store(n)
	}
	list := make([]stream.Block, len(keys))
	for i, k := range keys {
		list[i] = m.blocks[k]
	}
	return list, sync.OnceFunc(func() { m.held.Add(-int64(len(keys))) })
}

// someBlocks returns n blocks, the same ones in every process.
func someBlocks(l block.Layout, n int) (*memory, []block.Key) {
	m := &memory{blocks: map[block.Key]stream.Block{}}
	var keys []block.Key
	source := mathrand.NewChaCha8([32]byte{1})
	for i := range n {
		k := l.Space().Key(fmt.Appendf(nil, "%d", i))
		data := make([]byte, l.Bytes())
		_, _ = source.Read(data)
		m.blocks[k] = stream.Block{Data: data, Sum: block.Sum(data), Generation: uint64(i) + 7}
		keys = append(keys, k)
	}
	return m, keys
}

func slots(n int) (dst [][]byte) {
	for range n {
		dst = append(dst, make([]byte, layout.Bytes()))
	}
	return dst
}

// serve runs a server until the test ends, and returns its address. Then no goroutine may be left.
func serve(t *testing.T, source stream.Source, change func(*stream.ServerConfig), wrap func(net.Listener) net.Listener) (*stream.Server, string) {
	t.Helper()
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, before) })
	cfg := stream.ServerConfig{Token: token, Node: "server", Layout: layout, Source: source}
	if change != nil {
		change(&cfg)
	}
	server, err := stream.NewServer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := ln.Addr().String()
	if wrap != nil {
		ln = wrap(ln)
	}

	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- server.Serve(ctx, ln) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return server, address
}

// connect returns a client of an address, which is closed before the server is.
func connect(t *testing.T, address string, change func(*stream.ClientConfig)) *stream.Client {
	t.Helper()
	c := newClient(t, address, change)
	t.Cleanup(c.Close)
	return c
}

// newClient returns a client of an address. The caller closes it.
func newClient(t *testing.T, address string, change func(*stream.ClientConfig)) *stream.Client {
	t.Helper()
	cfg := stream.ClientConfig{Token: token, Node: "client", Layout: layout, Dial: func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", address)
	}}
	if change != nil {
		change(&cfg)
	}
	c, err := stream.NewClient(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// same checks that all blocks have arrived.
func same(t *testing.T, m *memory, keys []block.Key, dst [][]byte, results []stream.Result) {
	t.Helper()
	for i, r := range results {
		want := m.blocks[keys[i]]
		if r.Err != nil || !bytes.Equal(dst[i], want.Data) || r.Sum != want.Sum || r.Generation != want.Generation {
			t.Fatalf("block %d: %+v", i, r)
		}
	}
}

func TestFetch(t *testing.T) {
	m, keys := someBlocks(layout, 2500) // three requests, ten windows
	server, address := serve(t, m, nil, nil)
	c := connect(t, address, nil)
	dst := slots(len(keys))
	same(t, m, keys, dst, c.Fetch(t.Context(), keys, dst))

	mixed := []block.Key{keys[5], {1, 2, 3}, keys[7], keys[7]}
	results := c.Fetch(t.Context(), mixed, slots(4))
	if results[0].Err != nil || !errors.Is(results[1].Err, stream.ErrMissing) || results[2].Err != nil || results[3].Err != nil {
		t.Errorf("results are %+v", results)
	}
	if s := server.Stats(); s.Accepted != 1 || s.Open != 1 || s.Requests != 4 || s.Blocks != 2503 || s.Missing != 1 {
		t.Errorf("stats are %+v", s)
	}
	// The server releases the blocks of an answer after the client has read it.
	testkit.Eventually(t, "no block is held", func() bool { return m.held.Load() == 0 })
	if most := int(m.most.Load()) * layout.Bytes(); most > 4<<20 {
		t.Errorf("%d bytes were held at once", most)
	}
}

func TestManyCallersShareAConnection(t *testing.T) {
	m, keys := someBlocks(layout, 64)
	server, address := serve(t, m, nil, nil)
	c := connect(t, address, nil)
	var wait sync.WaitGroup
	for i := range 40 {
		wait.Go(func() {
			dst := slots(16)
			part := keys[i : i+16]
			for _, r := range c.Fetch(t.Context(), part, dst) {
				if r.Err != nil {
					t.Error(r.Err)
				}
			}
			for j, k := range part {
				if !bytes.Equal(dst[j], m.blocks[k].Data) {
					t.Errorf("caller %d: block %d has other bytes", i, j)
				}
			}
		})
	}
	wait.Wait()
	if s := server.Stats(); s.Accepted != 1 || s.Busy != 0 {
		t.Errorf("stats are %+v", s)
	}
}

// TestRefusals has clients that may not connect.
func TestRefusals(t *testing.T) {
	m, keys := someBlocks(layout, 1)
	server, address := serve(t, m, func(c *stream.ServerConfig) { c.Connections = 1 }, nil)
	for name, c := range map[string]struct {
		change func(*stream.ClientConfig)
		want   error
		text   string
	}{
		"token":  {func(c *stream.ClientConfig) { c.Token = "another token of sixteen" }, stream.ErrToken, "give both nodes the same token"},
		"layout": {func(c *stream.ClientConfig) { c.Layout.PageTokens = 32 }, block.ErrLayout, "pageTokens is 16 here and 32 there"},
		"model":  {func(c *stream.ClientConfig) { c.Layout.Model = "other" }, block.ErrLayout, "other"},
	} {
		client := connect(t, address, c.change)
		size := layout
		if name == "layout" {
			size.PageTokens = 32
		}
		result := client.Fetch(t.Context(), keys, [][]byte{make([]byte, size.Bytes())})[0]
		if !errors.Is(result.Err, c.want) || !bytes.Contains([]byte(result.Err.Error()), []byte(c.text)) {
			t.Errorf("%s: %v", name, result.Err)
		}
		began := time.Now()
		if result := client.Fetch(t.Context(), keys, [][]byte{make([]byte, size.Bytes())})[0]; !errors.Is(result.Err, c.want) || time.Since(began) > 10*time.Second {
			t.Errorf("%s, again: %v", name, result.Err)
		}
	}

	first := connect(t, address, nil)
	second := connect(t, address, nil)
	dst := slots(1)
	same(t, m, keys, dst, first.Fetch(t.Context(), keys, dst))
	if err := second.Fetch(t.Context(), keys, dst)[0].Err; !errors.Is(err, stream.ErrFull) {
		t.Errorf("second connection: %v", err)
	}
	testkit.Eventually(t, "four streams are refused", func() bool { s := server.Stats(); return s.Refused == 4 && s.Open == 1 })
	first.Close()
	if err := first.Fetch(t.Context(), keys, dst)[0].Err; !errors.Is(err, stream.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// TestServerWithoutTheTokenIsRefused has a server that takes every proof, and answers with the client's own.
func TestServerWithoutTheTokenIsRefused(t *testing.T) {
	certificate := newCertificate(t)
	here, there := net.Pipe()
	var server sync.WaitGroup
	server.Go(func() {
		conn := tls.Server(there, &tls.Config{Certificates: []tls.Certificate{certificate}})
		b := make([]byte, 1<<14)
		n, err := conn.Read(b)
		if err != nil {
			t.Error(err)
			return
		}
		var hello map[string]any
		if err := json.Unmarshal(b[8:n], &hello); err != nil {
			t.Error(err)
		}
		delete(hello, "layout")
		hello["node"] = "server"
		answer, _ := json.Marshal(hello)
		_, _ = conn.Write(append(binary.LittleEndian.AppendUint32([]byte{1, 0, 0, 0}, uint32(len(answer))), answer...))
	})

	_, keys := someBlocks(layout, 1)
	c := connect(t, "", func(cfg *stream.ClientConfig) {
		cfg.Dial = func(context.Context) (net.Conn, error) { return here, nil }
	})
	if err := c.Fetch(t.Context(), keys, slots(1))[0].Err; !errors.Is(err, stream.ErrToken) {
		t.Error(err)
	}
	server.Wait()
}

// newCertificate returns a certificate that is signed by itself.
func newCertificate(t *testing.T) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// flip changes one bit of the bytes received on a first connection.
type flip struct {
	net.Conn
	at   int
	read int
}

func (f *flip) Read(b []byte) (int, error) {
	n, err := f.Conn.Read(b)
	if f.at >= f.read && f.at < f.read+n {
		b[f.at-f.read] ^= 1
	}
	f.read += n
	return n, err
}

// TestChangedBytesEndTheConnection flips a bit in the third of four blocks on the way. The two before it have come, and the next transfer has a
// new connection.
func TestChangedBytesEndTheConnection(t *testing.T) {
	m, keys := someBlocks(layout, 4)
	_, address := serve(t, m, nil, nil)
	first := true
	c := connect(t, address, func(cfg *stream.ClientConfig) {
		dial := cfg.Dial
		cfg.Dial = func(ctx context.Context) (net.Conn, error) {
			conn, err := dial(ctx)
			if !first {
				return conn, err
			}
			first = false
			return &flip{Conn: conn, at: 2*layout.Bytes() + layout.Bytes()/2}, err
		}
	})
	for i, r := range c.Fetch(t.Context(), keys, slots(4)) {
		if (r.Err != nil) != (i >= 2) {
			t.Errorf("block %d: %v", i, r.Err)
		}
	}
	dst := slots(4)
	same(t, m, keys, dst, c.Fetch(t.Context(), keys, dst))
}

// TestDamageIsFound has a server whose third of four blocks is not what its checksum was made of.
func TestDamageIsFound(t *testing.T) {
	m, keys := someBlocks(layout, 4)
	damaged := m.blocks[keys[2]]
	damaged.Sum ^= 1
	m.blocks[keys[2]] = damaged
	_, address := serve(t, m, nil, nil)
	c := connect(t, address, nil)
	for i, r := range c.Fetch(t.Context(), keys, slots(4)) {
		if errors.Is(r.Err, stream.ErrDamaged) != (i == 2) || (r.Err != nil) != (i == 2) {
			t.Errorf("block %d: %v", i, r.Err)
		}
	}
}

// TestCreditsAreKept counts the bytes that a server sends to a client that receives nothing: the window, and not more.
func TestCreditsAreKept(t *testing.T) {
	m, keys := someBlocks(layout, 100)
	server, address := serve(t, m, nil, nil)
	held := make(chan struct{})
	c := connect(t, address, func(cfg *stream.ClientConfig) {
		cfg.Window = 8 * layout.Bytes()
		dial := cfg.Dial
		cfg.Dial = func(ctx context.Context) (net.Conn, error) {
			conn, err := dial(ctx)
			return &hold{Conn: conn, after: 4000, held: held}, err // the handshake has fewer bytes
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan []stream.Result)
	dst := slots(100)
	go func() { done <- c.Fetch(ctx, keys, dst) }()
	testkit.Eventually(t, "a window is sent", func() bool { return server.Stats().Blocks >= 8 })
	time.Sleep(300 * time.Millisecond) // time for more
	if s := server.Stats(); s.Blocks != 8 {
		t.Errorf("%d blocks were sent within a window of 8", s.Blocks)
	}
	close(held)
	same(t, m, keys, dst, <-done)
	cancel()
}

// hold stops receiving after some bytes until held is closed, or the connection.
type hold struct {
	net.Conn
	after int
	held  chan struct{}
	read  int
}

func (h *hold) Read(b []byte) (int, error) {
	if h.read > h.after {
		<-h.held
	}
	n, err := h.Conn.Read(b)
	h.read += n
	return n, err
}

// TestClientThatDoesNotReceive has credit, and takes nothing: the server gives its blocks back in time.
func TestClientThatDoesNotReceive(t *testing.T) {
	m, keys := someBlocks(layout, 1000)
	server, address := serve(t, m, func(c *stream.ServerConfig) { c.WriteTimeout = 200 * time.Millisecond }, nil)
	held := make(chan struct{})
	c := connect(t, address, func(cfg *stream.ClientConfig) {
		cfg.Window = 64 << 20
		dial := cfg.Dial
		cfg.Dial = func(ctx context.Context) (net.Conn, error) {
			conn, err := dial(ctx)
			return &hold{Conn: conn, after: 4000, held: held}, err
		}
	})
	go c.Fetch(t.Context(), keys, slots(1000))
	testkit.Eventually(t, "a block is held", func() bool { return m.held.Load() > 0 })
	testkit.Eventually(t, "no block is held and no stream is open", func() bool { return m.held.Load() == 0 && server.Stats().Open == 0 })
	if most := int(m.most.Load()) * layout.Bytes(); most > 4<<20 {
		t.Errorf("%d bytes were held", most)
	}
	close(held)
}

// TestAcceptErrors has a listener that fails for a while, as one does without free file descriptors.
func TestAcceptErrors(t *testing.T) {
	m, keys := someBlocks(layout, 1)
	var log bytes.Buffer
	server, address := serve(t, m, func(c *stream.ServerConfig) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) },
		func(ln net.Listener) net.Listener { return &failing{Listener: ln, left: 3} })
	dst := slots(1)
	same(t, m, keys, dst, connect(t, address, nil).Fetch(t.Context(), keys, dst))
	if s := server.Stats(); s.AcceptErrors != 3 || strings.Count(log.String(), "too many open files") != 1 {
		t.Errorf("stats are %+v; the log:\n%s", s, log.String())
	}
}

// TestHalfOpenHandshakes has an address with many connections that send nothing: others, from that address too, are served, and a handshake of
// another address that is slow is not ended.
func TestHalfOpenHandshakes(t *testing.T) {
	m, keys := someBlocks(layout, 1)
	server, address := serve(t, m, func(c *stream.ServerConfig) { c.HandshakeTimeout = time.Minute }, nil)
	from := func(host string) net.Conn {
		conn, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(host)}}).DialContext(t.Context(), "tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	slow := from("127.0.0.2")
	for range 100 {
		from("127.0.0.1")
	}
	testkit.Eventually(t, "all others are refused", func() bool { return server.Stats().Refused == 100+1-64 })

	dst := slots(1)
	same(t, m, keys, dst, connect(t, address, nil).Fetch(t.Context(), keys, dst))
	other := connect(t, address, func(c *stream.ClientConfig) { c.Dial = func(context.Context) (net.Conn, error) { return slow, nil } })
	same(t, m, keys, dst, other.Fetch(t.Context(), keys, dst))
	testkit.Eventually(t, "the next stream is accepted", func() bool { s := server.Stats(); return s.Accepted == 2 && s.Refused == 100+1-64+1 })
}

type failing struct {
	net.Listener
	left int
}

func (f *failing) Accept() (net.Conn, error) {
	if f.left > 0 {
		f.left--
		return nil, errors.New("too many open files")
	}
	return f.Listener.Accept()
}

// TestCancelKeepsTheConnection cancels transfers in the middle: their slices are left alone, and others go on.
func TestCancelKeepsTheConnection(t *testing.T) {
	m, keys := someBlocks(layout, 500)
	server, address := serve(t, m, nil, nil)
	c := connect(t, address, nil)
	one := slots(1)
	same(t, m, keys[:1], one, c.Fetch(t.Context(), keys[:1], one)) // so that no handshake is cancelled
	for i := range 20 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		time.AfterFunc(time.Duration(i)*time.Millisecond, cancel)
		dst := slots(500)
		results := c.Fetch(ctx, keys, dst)
		copied := make([][]byte, len(dst))
		for j := range dst {
			copied[j] = bytes.Clone(dst[j])
		}
		time.Sleep(5 * time.Millisecond)
		for j, r := range results {
			if !bytes.Equal(copied[j], dst[j]) {
				t.Fatalf("block %d has changed after its transfer was cancelled", j)
			}
			if r.Err != nil && !errors.Is(r.Err, context.Canceled) {
				t.Fatalf("block %d: %v", j, r.Err)
			}
		}
	}
	dst := slots(500)
	same(t, m, keys, dst, c.Fetch(t.Context(), keys, dst))
	// A connection is given up only if the machine stalls in the middle of a cancelled transfer.
	if s := server.Stats(); s.Accepted > 5 || s.Blocks >= 21*500 {
		t.Errorf("stats are %+v: a cancelled request is sent to its end, or the connection was given up", s)
	}
}

// TestHostileClients send half a handshake, garbage, or nothing, with TLS and without. They are closed in time, and nothing is left of them.
func TestHostileClients(t *testing.T) {
	m, _ := someBlocks(layout, 1)
	server, address := serve(t, m, func(c *stream.ServerConfig) { c.HandshakeTimeout = 300 * time.Millisecond }, nil)
	for name, first := range map[string][]byte{
		"nothing":        {},
		"half a header":  {1, 0, 0},
		"long frame":     {1, 0, 0, 0, 0xff, 0xff, 0xff, 0x7f},
		"request first":  append([]byte{3, 0, 0, 0, 20, 0, 0, 0}, make([]byte, 20)...),
		"garbage":        []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
		"not JSON":       append([]byte{1, 0, 0, 0, 4, 0, 0, 0}, "abcd"...),
		"half a hello":   append([]byte{1, 0, 0, 0, 200, 0, 0, 0}, `{"version":1`...),
		"another":        append([]byte{1, 0, 0, 0, 13, 0, 0, 0}, `{"version":1}`...),
		"without layout": append([]byte{1, 0, 0, 0, 13, 0, 0, 0}, `{"version":2}`...),
	} {
		for _, secure := range []bool{false, true} {
			conn, err := net.Dial("tcp", address)
			if err != nil {
				t.Fatal(err)
			}
			if secure {
				conn = tls.Client(conn, &tls.Config{InsecureSkipVerify: true})
			}
			_, _ = conn.Write(first)
			_ = conn.SetReadDeadline(time.Now().Add(30 * time.Second))
			began := time.Now()
			for err == nil {
				_, err = conn.Read(make([]byte, 1000))
			}
			var timeout net.Error
			if errors.As(err, &timeout) && timeout.Timeout() {
				t.Errorf("%s, with TLS %v: open after %v: %v", name, secure, time.Since(began), err)
			}
			_ = conn.Close()
		}
	}
	testkit.Eventually(t, "18 streams are refused", func() bool { s := server.Stats(); return s.Refused == 18 && s.Open == 0 })
}

// TestIdleConnectionsEnd closes a connection that is not used. The next transfer connects again.
func TestIdleConnectionsEnd(t *testing.T) {
	m, keys := someBlocks(layout, 1)
	server, address := serve(t, m, func(c *stream.ServerConfig) { c.IdleTimeout = 100 * time.Millisecond }, nil)
	c := connect(t, address, nil)
	dst := slots(1)
	same(t, m, keys, dst, c.Fetch(t.Context(), keys, dst))
	testkit.Eventually(t, "no stream is open", func() bool { return server.Stats().Open == 0 })
	same(t, m, keys, dst, c.Fetch(t.Context(), keys, dst))
}

// lateConn is a connection on which the end of the peer arrives late: reads wait while late is set, until a write.
type lateConn struct {
	net.Conn
	late    atomic.Bool
	written chan struct{}
}

func (c *lateConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.late.Load() {
		<-c.written
	}
	return n, err
}

func (c *lateConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if c.late.CompareAndSwap(true, false) {
		close(c.written)
	}
	return n, err
}

// TestRequestWhileThePeerCloses: requests that are sent on a connection which the peer is closing are sent again on another one.
func TestRequestWhileThePeerCloses(t *testing.T) {
	for _, what := range []string{"blocks", "summary"} {
		m, keys := someBlocks(layout, 1)
		server, address := serve(t, m, func(c *stream.ServerConfig) { c.IdleTimeout = 50 * time.Millisecond }, nil)
		var last *lateConn
		c := connect(t, address, func(c *stream.ClientConfig) {
			c.Dial = func(ctx context.Context) (net.Conn, error) {
				raw, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
				last = &lateConn{Conn: raw, written: make(chan struct{})}
				return last, err
			}
		})
		dst := slots(1)
		same(t, m, keys, dst, c.Fetch(t.Context(), keys, dst))
		last.late.Store(true)
		testkit.Eventually(t, "no stream is open", func() bool { return server.Stats().Open == 0 })

		if what == "blocks" {
			same(t, m, keys, dst, c.Fetch(t.Context(), keys, dst))
		} else if _, _, err := c.Summary(t.Context(), 0); err != nil {
			t.Error(err)
		}
	}
}

// TestTooManyRequests has a client that sends more than the server takes.
func TestTooManyRequests(t *testing.T) {
	m, keys := someBlocks(layout, 100)
	server, address := serve(t, m, func(c *stream.ServerConfig) { c.Requests = 1 }, nil)
	c := connect(t, address, func(cfg *stream.ClientConfig) { cfg.Window = 2 * layout.Bytes() })
	var busy atomic.Int64
	var wait sync.WaitGroup
	for range 8 {
		wait.Go(func() {
			for _, r := range c.Fetch(t.Context(), keys, slots(100)) {
				switch {
				case errors.Is(r.Err, stream.ErrBusy):
					busy.Add(1)
				case r.Err != nil:
					t.Error(r.Err)
				}
			}
		})
	}
	wait.Wait()
	if busy.Load() == 0 || server.Stats().Busy == 0 {
		t.Error("no request was refused")
	}
}

func TestWrongConfigurations(t *testing.T) {
	for _, c := range []stream.ClientConfig{{Token: "short", Node: "a", Layout: layout}, {Token: token, Layout: layout}, {Token: token, Node: "a"},
		{Token: token, Node: "a", Layout: layout}} {
		if _, err := stream.NewClient(c); err == nil {
			t.Errorf("%+v is accepted", c)
		}
	}
	if _, err := stream.NewServer(stream.ServerConfig{Token: token, Node: "a", Layout: layout}); err == nil {
		t.Error("a server without a source is accepted")
	}
	m, keys := someBlocks(layout, 1)
	_, address := serve(t, m, nil, nil)
	if err := connect(t, address, nil).Fetch(t.Context(), keys, [][]byte{make([]byte, 5)})[0].Err; err == nil {
		t.Error("a short slice is accepted")
	}
}
