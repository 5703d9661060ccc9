package grpcserve

import (
	"context"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"
)

// Endings lets streams end together with their last message. grpc-go writes the last message and the status of a stream independently,
// and an arbitrary time apart if the process gets no CPU between. An Envoy that has read the message alone sends the next message of its
// request to the stream, which answers no more.
//
// Use the listener and the option of the same Endings. The zero value is ready.
//
//	event                              effect on the bytes that gRPC writes to the connection
//	EndTogether                        they are held
//	the status was handed over         the next write, which has the status, takes the held bytes along
//	more than maxHeld are held         all are written at once
//	the first is held for maxHold      the same: the client has reset the stream, so no status is written
//
// All streams of a connection wait while one of them ends, because the order of frames must stay. That takes some microseconds on an idle
// CPU.
type Endings struct {
	conns sync.Map // from the address of the other end, a pointer, to its *heldConn; an entry lives as long as its connection
}

const (
	// maxHeld exceeds several messages of 64 KiB.
	maxHeld = 256 << 10
	// maxHold exceeds the time for which a busy machine leaves a goroutine without CPU.
	maxHold = 100 * time.Millisecond
)

// Listener returns ln with connections that can hold written bytes. It must be the listener of [grpc.Server.Serve].
func (e *Endings) Listener(ln net.Listener) net.Listener { return &holdingListener{ln, e} }

// Option returns the option of the gRPC server.
func (e *Endings) Option() grpc.ServerOption { return grpc.StatsHandler(statusWatch{e}) }

// EndTogether is called by the handler of a stream before it sends its last message. It must return soon after. Without a connection of
// an Endings it does nothing.
func EndTogether(stream context.Context) {
	if end, ok := stream.Value(endKey{}).(*ending); ok && !end.begun {
		end.begun = true
		end.conn.begin()
	}
}

type holdingListener struct {
	net.Listener
	endings *Endings
}

// Accept returns the next connection.
func (l *holdingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	held := &heldConn{Conn: c, endings: l.endings}
	held.late = time.AfterFunc(time.Hour, held.flush)
	held.late.Stop()
	l.endings.conns.Store(c.RemoteAddr(), held)
	return held, nil
}

// heldConn is a connection that holds written bytes while a stream ends.
type heldConn struct {
	net.Conn
	endings *Endings
	late    *time.Timer // runs while bytes are held

	mu     sync.Mutex // also keeps the order of writes
	ending int        // streams that end
	held   []byte
}

// begin holds written bytes until end is called.
func (c *heldConn) begin() {
	c.mu.Lock()
	c.ending++
	c.mu.Unlock()
}

func (c *heldConn) end() {
	c.mu.Lock()
	c.ending--
	c.mu.Unlock()
}

// Write writes p, or holds it. An error of held bytes is returned by a later write.
func (c *heldConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ending == 0 && len(c.held) == 0 {
		return c.Conn.Write(p)
	}

	if len(c.held) == 0 {
		c.late.Reset(maxHold)
	}
	c.held = append(c.held, p...)
	if c.ending > 0 && len(c.held) <= maxHeld {
		return len(p), nil
	}
	if err := c.writeHeld(); err != nil {
		return 0, err
	}
	return len(p), nil
}

// flush writes bytes that were held for too long.
func (c *heldConn) flush() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.writeHeld(); err != nil {
		_ = c.Conn.Close() // bytes are missing, and gRPC was told that they were written
	}
}

// writeHeld writes the held bytes. c.mu is locked.
func (c *heldConn) writeHeld() error {
	c.late.Stop()
	_, err := c.Conn.Write(c.held)
	c.held = c.held[:0]
	return err
}

// Close closes the connection. Held bytes are lost.
func (c *heldConn) Close() error {
	c.late.Stop()
	c.endings.conns.Delete(c.RemoteAddr())
	return c.Conn.Close()
}

type (
	connKey struct{}
	endKey  struct{}
)

// ending is the end of one stream. It belongs to the goroutine of the stream's handler.
type ending struct {
	conn  *heldConn
	begun bool
}

// statusWatch sees when the status of a stream was handed over to the goroutine that writes.
type statusWatch struct{ endings *Endings }

// TagConn adds the connection to the contexts of its streams.
func (w statusWatch) TagConn(ctx context.Context, info *stats.ConnTagInfo) context.Context {
	if c, ok := w.endings.conns.Load(info.RemoteAddr); ok {
		return context.WithValue(ctx, connKey{}, c)
	}
	return ctx
}

// TagRPC adds the end of a stream to its context.
func (w statusWatch) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context {
	if c, ok := ctx.Value(connKey{}).(*heldConn); ok {
		return context.WithValue(ctx, endKey{}, &ending{conn: c})
	}
	return ctx
}

// HandleRPC handles the events of streams.
func (w statusWatch) HandleRPC(ctx context.Context, event stats.RPCStats) {
	if _, over := event.(*stats.End); !over {
		return
	}
	if end, ok := ctx.Value(endKey{}).(*ending); ok && end.begun {
		end.conn.end()
	}
}

// HandleConn does nothing.
func (w statusWatch) HandleConn(context.Context, stats.ConnStats) {}
