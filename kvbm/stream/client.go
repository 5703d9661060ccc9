package stream

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/stator-project/stator/internal/backoff"
	"github.com/stator-project/stator/internal/kv/block"
)

// ClientConfig configures a client of one peer. Token, Node, Layout and Dial have no default.
type ClientConfig struct {
	// Token, Node and Layout are as in [ServerConfig].
	Token, Node string
	Layout      block.Layout
	// Dial connects to the peer. The client runs TLS on the connection.
	Dial func(ctx context.Context) (net.Conn, error)

	// Window bounds the bytes that the peer may send ahead (16 MiB, and at least two blocks).
	Window int
	// Requests bounds the requests on the way at once (8), and likewise the calls. The peer's bound must not be lower.
	Requests int
	// Timeout is the longest that a transfer takes (10 s). Contexts may end it sooner.
	Timeout time.Duration
}

// Result is the outcome of the fetch of one block.
type Result struct {
	// Err is nil if the block has arrived and has the checksum Sum. Generation is the generation of the peer's slot.
	Err        error
	Sum        uint32
	Generation uint64
}

// Client fetches blocks from one peer. It connects when it is first used, and again when the connection has ended.
type Client struct {
	cfg   ClientConfig
	bytes int // of a block

	dialing  chan struct{} // has room for the one call that connects
	requests chan struct{} // has room for the requests on the way
	asking   chan struct{} // has room for the one call that waits for a summary
	calling  chan struct{} // has room for the calls on the way

	mu       sync.Mutex
	conn     *connection // nil before the first
	closed   bool
	pauses   backoff.Backoff
	nextDial time.Time // after an attempt that did not succeed
	dialErr  error
}

// NewClient checks the configuration. It does not connect.
func NewClient(cfg ClientConfig) (*Client, error) {
	if err := checkIdentity(cfg.Token, cfg.Node, &cfg.Layout); err != nil {
		return nil, fmt.Errorf("make stream client: %w", err)
	}
	if cfg.Dial == nil {
		return nil, errors.New("make stream client: it needs a function that connects")
	}
	size := cfg.Layout.Bytes()
	setDefault(&cfg.Window, 16<<20)
	setDefault(&cfg.Requests, 8)
	setDefault(&cfg.Timeout, 10*time.Second)
	cfg.Window = max(cfg.Window, 2*size)
	return &Client{cfg: cfg, bytes: size, dialing: make(chan struct{}, 1), requests: make(chan struct{}, cfg.Requests),
		asking: make(chan struct{}, 1), calling: make(chan struct{}, cfg.Requests),
		pauses: backoff.Backoff{Min: 100 * time.Millisecond, Max: 5 * time.Second}}, nil
}

// Close ends the connection, and with it all transfers. It waits until no goroutine is left.
func (c *Client) Close() {
	c.mu.Lock()
	c.closed = true
	conn := c.conn
	c.mu.Unlock()
	if conn != nil {
		conn.closeFor(ErrClosed)
		<-conn.ended
	}
}

// Drop ends the connection for a reason, such as a summary that the caller does not take. The next call connects again.
func (c *Client) Drop(reason error) {
	c.mu.Lock()
	conn := c.conn
	c.mu.Unlock()
	if conn != nil {
		conn.closeFor(reason)
	}
}

// Fetch fetches blocks: dst[i], with the size of a block, becomes the block keys[i]. There is a result for each. When Fetch returns, no
// more bytes arrive in dst. The content of dst[i] is undefined if the result is an error: ErrMissing, ErrDamaged, ErrBusy, ErrStalled,
// ErrProtocol, the reason for which a connection was refused, an error of the network or of ctx.
func (c *Client) Fetch(ctx context.Context, keys []block.Key, dst [][]byte) []Result {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	results := make([]Result, len(keys))
	for from := 0; from < len(keys); from += mostKeys {
		to := min(from+mostKeys, len(keys))
		err := c.check(keys, dst)
		if err == nil {
			err = c.fetch(ctx, keys[from:to], dst[from:to], results[from:to])
		}
		if err != nil {
			for i := range results[from:] {
				results[from+i].Err = err
			}
			break
		}
	}
	return results
}

// Summary returns the summary of the peer's blocks and its version, which is 0 if the peer has no summary. If has is that version
// already, the content is nil. The error is the reason for which a connection was refused, an error of the network, or one of ctx.
func (c *Client) Summary(ctx context.Context, has uint64) (version uint64, content []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	select {
	case c.asking <- struct{}{}:
		defer func() { <-c.asking }()
	case <-ctx.Done():
		return 0, nil, fmt.Errorf("wait for another summary: %w", ctx.Err())
	}

	failed, err := c.send(ctx, func(conn *connection) (err error) {
		version, content, err = conn.summary(ctx, has)
		return err
	})
	return version, content, cmp.Or(err, failed)
}

func (c *Client) check(keys []block.Key, dst [][]byte) error {
	for i := range keys {
		if len(dst) != len(keys) || len(dst[i]) != c.bytes {
			return fmt.Errorf("fetch block %v: it needs a slice of %d bytes", keys[i], c.bytes)
		}
	}
	return nil
}

// fetch does one request. Its error applies to all blocks.
func (c *Client) fetch(ctx context.Context, keys []block.Key, dst [][]byte, results []Result) error {
	select {
	case c.requests <- struct{}{}:
		defer func() { <-c.requests }()
	case <-ctx.Done():
		return fmt.Errorf("wait for one of %d requests: %w", c.cfg.Requests, ctx.Err())
	}
	_, err := c.send(ctx, func(conn *connection) error { return conn.transfer(ctx, keys, dst, results) }) // results have the other error
	return err
}

// send sends a request over the connection, and again over another one if the peer has closed a kept one meanwhile. It returns the error of
// the request, or why there is no connection.
func (c *Client) send(ctx context.Context, request func(*connection) error) (failed, err error) {
	for {
		conn, kept, err := c.connect(ctx)
		if err != nil {
			return nil, err
		}
		failed := request(conn)
		if !kept || !endedByPeer(failed) {
			return failed, nil
		}
	}
}

// endedByPeer reports whether the peer has closed a connection. It closes connections that were not used for some time, perhaps while a
// request is on the way, and the request is sent again then.
func endedByPeer(err error) bool {
	// A connection of TLS that ends without its last message is an unexpected end.
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) ||
		errors.Is(err, syscall.EPIPE)
}

// connect returns the connection, and whether it was kept from an earlier call. If there is none it makes one, or returns the last error
// until the pause after it has passed.
func (c *Client) connect(ctx context.Context) (conn *connection, kept bool, err error) {
	select {
	case c.dialing <- struct{}{}:
		defer func() { <-c.dialing }()
	case <-ctx.Done():
		return nil, false, fmt.Errorf("wait for a connection to the peer: %w", ctx.Err())
	}

	c.mu.Lock()
	conn = c.conn
	closed := c.closed
	pausing := time.Now().Before(c.nextDial)
	lastErr := c.dialErr
	c.mu.Unlock()
	switch {
	case closed:
		return nil, false, ErrClosed
	case conn != nil && conn.alive():
		return conn, true, nil
	case pausing:
		return nil, false, lastErr
	case conn != nil:
		<-conn.ended // soon, because it is closed
	}

	secure, calls, err := c.dial(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return nil, false, fmt.Errorf("connect to peer: %w", err) // which is no reason for others to pause
	}
	if err != nil {
		c.dialErr = fmt.Errorf("connect to peer: %w", err)
		c.nextDial = time.Now().Add(c.pauses.Next())
		return nil, false, c.dialErr
	}
	if c.closed {
		_ = secure.NetConn().Close()
		return nil, false, ErrClosed
	}
	c.pauses.Reset()
	c.conn = newConnection(secure, c.bytes, c.cfg.Window, calls)
	return c.conn, false, nil
}

// dial connects and does the handshake, until ctx ends. calls is whether the peer answers them.
func (c *Client) dial(ctx context.Context) (conn *tls.Conn, calls bool, err error) {
	raw, err := c.cfg.Dial(ctx) // no result, because the function below may run after the return
	if err != nil {
		return nil, false, interrupted(ctx, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = raw.Close() })
	secure := tls.Client(raw, clientTLS)
	calls, err = greetServer(secure, c.cfg.Token, c.cfg.Node, &c.cfg.Layout)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		_ = raw.Close()
		return nil, false, interrupted(ctx, err)
	}
	return secure, calls, nil
}

// interrupted returns why connecting has ended: err, unless ctx ended it.
func interrupted(ctx context.Context, err error) error {
	// The network may find that the deadline has passed before the context does.
	deadline, has := ctx.Deadline()
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return ctx.Err()
	case has && !time.Now().Before(deadline):
		return fmt.Errorf("%w: %w", ErrStalled, context.DeadlineExceeded)
	}
	return err
}
