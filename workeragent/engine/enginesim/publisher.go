package enginesim

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/go-zeromq/zmq4/security/null"

	"github.com/stator-project/stator/internal/kv/kvevent"
)

// publisher is vLLM's: a PUB socket that every message goes to, and a ROUTER socket that
// answers from a ring of the last ones. Each subscriber has its own bounded queue and loses
// messages when that is full, as with libzmq. The library's own PUB socket has one queue for
// all, waits for the slowest, and leaves a goroutine behind.
type publisher struct {
	topic string
	queue int
	log   *slog.Logger

	mu      sync.Mutex
	seq     uint64   // of the next message
	ring    [][]byte // payloads; message s lies at s % len(ring)
	subs    map[*subscriber]struct{}
	dropped uint64
}

type subscriber struct {
	messages chan published
	mu       sync.Mutex
	prefixes map[string]struct{} // guarded by mu
}

type published struct {
	seq     uint64
	payload []byte
}

func newPublisher(topic string, ring, queue int, log *slog.Logger) *publisher {
	return &publisher{topic: topic, queue: queue, log: log, ring: make([][]byte, ring), subs: map[*subscriber]struct{}{}}
}

// publish sends the events as one message. The engine may use theirs again afterwards.
func (p *publisher) publish(now time.Time, rank int, events ...kvevent.Raw) {
	payload := kvevent.AppendVLLM(nil, float64(now.UnixNano())/1e9, rank, events)
	p.mu.Lock()
	defer p.mu.Unlock()
	m := published{p.seq, payload}
	p.ring[m.seq%uint64(len(p.ring))] = payload
	p.seq++

	for s := range p.subs {
		if !s.wants(p.topic) {
			continue
		}
		select {
		case s.messages <- m:
		default:
			p.dropped++
		}
	}
}

// from returns the kept messages with number start and above.
func (p *publisher) from(start uint64) []published {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []published
	if n := uint64(len(p.ring)); p.seq > n {
		start = max(start, p.seq-n)
	}

	for s := start; s < p.seq; s++ {
		all = append(all, published{s, p.ring[s%uint64(len(p.ring))]})
	}
	return all
}

// serve accepts connections until ctx ends, and waits for all of them.
func (p *publisher) serve(ctx context.Context, l net.Listener, kind zmq4.SocketType) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()

	for {
		raw, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("accept event connection: %w", err)
		}
		wg.Go(func() {
			defer raw.Close()
			stop := context.AfterFunc(ctx, func() { raw.Close() })
			defer stop()
			if err := p.talk(ctx, raw, kind); err != nil && ctx.Err() == nil {
				p.log.Debug("event connection ended", "address", raw.RemoteAddr().String(), "err", err)
			}
		})
	}
}

func (p *publisher) talk(ctx context.Context, raw net.Conn, kind zmq4.SocketType) error {
	_ = raw.SetDeadline(time.Now().Add(10 * time.Second))
	conn := &writeBehind{Conn: raw}
	z, err := zmq4.Open(conn, null.Security(), kind, nil, true, nil)
	if err != nil {
		return err
	}

	_ = raw.SetDeadline(time.Time{})
	conn.w = bufio.NewWriterSize(raw, 16<<10)
	if kind == zmq4.Router {
		return p.answer(z, conn)
	}
	return p.feed(ctx, z, conn)
}

// feed sends a subscriber its messages while it reads what it subscribes to.
func (p *publisher) feed(ctx context.Context, z *zmq4.Conn, conn *writeBehind) error {
	s := &subscriber{messages: make(chan published, p.queue), prefixes: map[string]struct{}{}}
	p.mu.Lock()
	p.subs[s] = struct{}{}
	p.mu.Unlock()

	defer func() {
		p.mu.Lock()
		delete(p.subs, s)
		p.mu.Unlock()
	}()

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer conn.Close()
	wg.Go(func() {
		defer cancel()
		for s.listen(z) == nil {
		}
	})

	for {
		select {
		case <-ctx.Done():
			return nil
		case m := <-s.messages:
			if err := z.SendMsg(zmq4.NewMsgFrom([]byte(p.topic), bigEndian(m.seq), m.payload)); err != nil {
				return err
			}
			if len(s.messages) == 0 {
				if err := conn.w.Flush(); err != nil {
					return err
				}
			}
		}
	}
}

func (s *subscriber) listen(z *zmq4.Conn) error {
	msg, err := z.RecvMsg()
	if err != nil {
		return err
	}
	if len(msg.Frames) != 1 || len(msg.Frames[0]) == 0 {
		return nil
	}

	s.mu.Lock()
	defer s.mu.Unlock()

	switch prefix := string(msg.Frames[0][1:]); msg.Frames[0][0] {
	case 0:
		delete(s.prefixes, prefix)
	case 1:
		s.prefixes[prefix] = struct{}{}
	}
	return nil
}

func (s *subscriber) wants(topic string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()

	for prefix := range s.prefixes {
		if strings.HasPrefix(topic, prefix) {
			return true
		}
	}
	return false
}

// answer serves replays: ["", start] in, ["", topic, seq, payload]... and ["", "", -1, ""] out.
func (p *publisher) answer(z *zmq4.Conn, conn *writeBehind) error {
	for {
		msg, err := z.RecvMsg()
		if err != nil {
			return err
		}
		if len(msg.Frames) == 0 || len(msg.Frames[len(msg.Frames)-1]) != 8 {
			continue
		}
		start := binary.BigEndian.Uint64(msg.Frames[len(msg.Frames)-1])
		for _, m := range p.from(start) {
			if err := z.SendMsg(zmq4.NewMsgFrom(nil, []byte(p.topic), bigEndian(m.seq), m.payload)); err != nil {
				return err
			}
		}
		if err := z.SendMsg(zmq4.NewMsgFrom(nil, nil, bigEndian(^uint64(0)), nil)); err != nil {
			return err
		}
		if err := conn.w.Flush(); err != nil {
			return err
		}
	}
}

// writeBehind collects what is written once w is set: the library writes frame by frame.
type writeBehind struct {
	net.Conn
	w *bufio.Writer
}

func (c *writeBehind) Write(b []byte) (int, error) {
	if c.w == nil {
		return c.Conn.Write(b)
	}
	return c.w.Write(b)
}

func bigEndian(v uint64) []byte { return binary.BigEndian.AppendUint64(nil, v) }

// tcpAddress is the host:port of a ZMQ endpoint; * means every interface.
func tcpAddress(endpoint string) (string, error) {
	address, ok := strings.CutPrefix(endpoint, "tcp://")
	if _, _, err := net.SplitHostPort(address); !ok || err != nil {
		return "", fmt.Errorf("endpoint %q must look like tcp://127.0.0.1:5557", endpoint)
	}
	return strings.TrimPrefix(address, "*"), nil
}
