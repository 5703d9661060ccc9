package kvsource

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/go-zeromq/zmq4/security/null"
)

// dial opens one ZMTP connection, which is closed when ctx ends.
//
// The library's connections are used and not its sockets. A socket hides the loss of a connection,
// which is when an engine may have restarted. It also reconnects in goroutines that Close does not
// wait for, and it allocates memory for a frame before the frame has arrived.
func dial(ctx context.Context, endpoint string, kind zmq4.SocketType, cfg *Config) (*zmq4.Conn, *boundedConn, error) {
	network, address, err := splitEndpoint(endpoint)
	if err != nil {
		return nil, nil, err
	}
	d := net.Dialer{
		Timeout:         cfg.Timeout,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 3},
	}
	raw, err := d.DialContext(ctx, network, address)
	if err != nil {
		return nil, nil, err
	}
	return greet(ctx, raw, kind, false, cfg)
}

// greet performs the ZMTP handshake on a network connection, which is closed when ctx ends. accepted
// means that the peer has dialed.
func greet(ctx context.Context, raw net.Conn, kind zmq4.SocketType, accepted bool, cfg *Config) (*zmq4.Conn, *boundedConn, error) {
	stop := context.AfterFunc(ctx, func() { raw.Close() })
	conn := &boundedConn{Conn: raw, r: bufio.NewReaderSize(raw, 32<<10), greeting: greetingLen, limit: cfg.MaxMessage, stop: stop}
	_ = raw.SetDeadline(time.Now().Add(cfg.Timeout))
	z, err := zmq4.Open(conn, null.Security(), kind, nil, accepted, nil)
	if err != nil {
		conn.Close()
		return nil, nil, fmt.Errorf("greet %s: %w", raw.RemoteAddr(), err)
	}
	_ = raw.SetDeadline(time.Time{})
	return z, conn, nil
}

const (
	greetingLen = 64
	// frameCost is added to each frame's size, so that a message of very many empty frames is
	// bounded too.
	frameCost = 64

	flagMore = 1
	flagLong = 2
)

// boundedConn reads the frame headers of the stream that passes through it. A message above the
// limit is an error before the library reads its length and allocates memory.
type boundedConn struct {
	net.Conn
	r        *bufio.Reader
	greeting int // bytes of the greeting still to come
	frame    int // bytes of the present frame still to come, its header included
	message  int // size of the message so far
	limit    int
	stop     func() bool
}

// Close closes the connection, and ends the watch of its context.
func (c *boundedConn) Close() error {
	c.stop()
	return c.Conn.Close()
}

// Read returns bytes of the present frame only, so that each frame's header passes nextFrame first.
func (c *boundedConn) Read(p []byte) (int, error) {
	if c.greeting > 0 {
		n, err := c.r.Read(p[:min(len(p), c.greeting)])
		c.greeting -= n
		return n, err
	}
	if c.frame == 0 {
		if err := c.nextFrame(); err != nil {
			return 0, err
		}
	}
	n, err := c.r.Read(p[:min(len(p), c.frame)])
	c.frame -= n
	return n, err
}

// nextFrame reads the header of the next frame without consuming it, and checks the message's size.
func (c *boundedConn) nextFrame() error {
	header, err := c.r.Peek(2)
	if err != nil {
		return err
	}
	flags, size := header[0], uint64(header[1])
	if flags&flagLong != 0 {
		header, err = c.r.Peek(9)
		if err != nil {
			return err
		}
		size = binary.BigEndian.Uint64(header[1:])
	}
	room := c.limit + 4*frameCost - c.message
	if room < frameCost || size > uint64(room-frameCost) {
		return fmt.Errorf("a message of more than %d bytes: the limit is exceeded", c.limit)
	}
	c.frame = len(header) + int(size)
	c.message += frameCost + int(size)
	if flags&flagMore == 0 {
		c.message = 0
	}
	return nil
}
