package stream

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/stator-project/stator/internal/kv/block"
)

const (
	// quarantine bounds how long a transfer that ends early waits for the rest of a block, before it closes the connection.
	quarantine = 100 * time.Millisecond
	// writeTimeout bounds the writes of a client, which are small.
	writeTimeout = 2 * time.Second
)

// connection is a client's connection after its handshake.
type connection struct {
	conn   *tls.Conn
	bytes  int // of a block
	window int
	// answersCalls is whether the server does.
	answersCalls bool
	ended        chan struct{} // closed when the reader has ended, and with it all transfers

	writing chan struct{} // has room for the one that writes

	mu        sync.Mutex
	transfers map[uint32]*transfer // guarded by mu, as all below; by their ids
	lastID    uint32               // of a transfer
	received  int                  // frames
	ask       *ask                 // nil if no summary is awaited
	lastAsk   uint32
	calls     map[uint32]*call // that are awaited, by their ids
	lastCall  uint32
	err       error // why the connection has ended
}

// ask is a summary that is awaited. The mutex of its connection guards it until done is closed.
type ask struct {
	id      uint32
	version uint64
	content []byte
	err     error
	done    chan struct{}
}

// transfer is a request that has not been answered in full. The mutex of its connection guards it.
type transfer struct {
	dst      [][]byte
	results  []Result
	answered []bool
	left     int
	// receiving is set while the reader writes into a slice of dst. quiet is closed after that, if the transfer has been given up.
	receiving bool
	quiet     chan struct{}
	done      chan struct{} // closed when nothing is left, or with the connection
}

func newConnection(conn *tls.Conn, bytes, window int, calls bool) *connection {
	c := &connection{conn: conn, bytes: bytes, window: window, answersCalls: calls, ended: make(chan struct{}),
		writing: make(chan struct{}, 1), transfers: map[uint32]*transfer{}, calls: map[uint32]*call{}}
	go c.receiveFrames()
	return c
}

// alive reports whether the connection has not ended.
func (c *connection) alive() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err == nil
}

// closeFor closes the connection for a reason. The first one counts. It closes the connection below TLS, because the last message of TLS
// could wait for the peer.
func (c *connection) closeFor(err error) {
	c.mu.Lock()
	if c.err == nil {
		c.err = err
	}
	c.mu.Unlock()
	_ = c.conn.NetConn().Close()
}

// transfer requests blocks, and waits for them until ctx ends. The error is the error of the connection, if it has ended before any block
// had come.
func (c *connection) transfer(ctx context.Context, keys []block.Key, dst [][]byte, results []Result) error {
	t := &transfer{dst: dst, results: results, answered: make([]bool, len(keys)), left: len(keys), done: make(chan struct{})}
	c.mu.Lock()
	c.lastID++
	id := c.lastID
	before := c.received
	if c.err == nil {
		c.transfers[id] = t
	} else {
		t.fail(c.err)
		close(t.done)
	}
	c.mu.Unlock()

	if err := c.write(ctx, appendRequest(nil, id, keys)); err != nil && ctx.Err() == nil {
		c.closeFor(fmt.Errorf("request blocks: %w", err))
	}
	select {
	case <-t.done:
	case <-ctx.Done():
		c.giveUp(ctx, id, t, before)
	}

	c.mu.Lock()
	defer c.mu.Unlock()
	if t.left == len(keys) && ctx.Err() == nil {
		return c.err
	}
	return nil
}

// summary asks for a summary, and waits for it until ctx ends.
func (c *connection) summary(ctx context.Context, has uint64) (version uint64, content []byte, err error) {
	a := &ask{done: make(chan struct{})}
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return 0, nil, c.err
	}
	c.lastAsk++
	a.id = c.lastAsk
	c.ask = a
	before := c.received
	c.mu.Unlock()

	if err := c.write(ctx, appendSummary(nil, kindAsk, a.id, has, 0)); err != nil && ctx.Err() == nil {
		c.closeFor(fmt.Errorf("ask for a summary: %w", err))
	}
	select {
	case <-a.done:
		return a.version, a.content, a.err
	case <-ctx.Done():
	}

	c.mu.Lock()
	stalled := errors.Is(ctx.Err(), context.DeadlineExceeded) && c.received == before
	if c.ask == a {
		c.ask = nil
	}
	c.mu.Unlock()
	if stalled {
		err = fmt.Errorf("%w: %w", ErrStalled, ctx.Err())
		c.closeFor(err)
		return 0, nil, err
	}
	return 0, nil, ctx.Err()
}

// giveUp ends a transfer early. When it returns, no more bytes arrive in the transfer's slices. before is the number of frames that
// had been received when the transfer began.
func (c *connection) giveUp(ctx context.Context, id uint32, t *transfer, before int) {
	c.mu.Lock()
	if c.transfers[id] != t { // it has just ended
		c.mu.Unlock()
		<-t.done
		return
	}
	delete(c.transfers, id)
	stalled := errors.Is(ctx.Err(), context.DeadlineExceeded) && c.received == before
	t.quiet = make(chan struct{})
	if !t.receiving {
		close(t.quiet)
	}
	c.mu.Unlock()

	timer := time.NewTimer(quarantine)
	defer timer.Stop()
	select {
	case <-t.quiet:
	case <-timer.C:
		stalled = true
	}

	err := ctx.Err()
	if stalled {
		err = fmt.Errorf("%w: %w", ErrStalled, err)
		c.closeFor(err)
		<-c.ended // the reader writes nothing from here on
	} else {
		// The peer may stop sending. If it does not get this, its bytes are dropped.
		short, cancel := context.WithTimeout(context.WithoutCancel(ctx), quarantine)
		defer cancel()
		_ = c.write(short, appendNumber(nil, kindCancel, id))
	}
	t.fail(err)
}

// fail sets the error of all blocks that have no answer.
func (t *transfer) fail(err error) {
	for i, is := range t.answered {
		if !is {
			t.results[i].Err = err
		}
	}
}

// write writes a frame. After an error nothing more can be written, which ends the connection.
func (c *connection) write(ctx context.Context, b []byte) error {
	select {
	case c.writing <- struct{}{}:
		defer func() { <-c.writing }()
	case <-ctx.Done():
		return ctx.Err()
	}

	if err := ctx.Err(); err != nil {
		return err
	}
	// The deadline is not the deadline of ctx: other calls use the connection too, and one late call must not end it.
	_ = c.conn.SetWriteDeadline(time.Now().Add(writeTimeout))
	_, err := c.conn.Write(b)
	if err != nil {
		c.closeFor(err)
	}
	return err
}
