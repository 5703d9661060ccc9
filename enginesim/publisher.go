package enginesim

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/go-zeromq/zmq4/security/null"

	"github.com/stator-project/stator/internal/kv/kvevent"
)

// publisher publishes KV events as vLLM does: a PUB socket for all messages, and a ROUTER socket that replays the
// last messages from a ring. Each subscriber has a bounded queue and loses messages when it is full, as with
// libzmq. The PUB socket of the ZMQ library is not used: it has one queue for all subscribers, waits for the
// slowest one, and leaves a goroutine behind.
//
// A message has three frames, as in vLLM: the topic, the sequence number as eight bytes, and the payload, which
// is a batch of events in MessagePack. Sequence numbers begin with 0 and have no gaps, so a subscriber sees a
// lost message by its number and asks for a replay.
//
//	event                       subscriber                            ring
//	connect and subscribe       gets messages from now on             –
//	publish, queue has room     the message waits in its queue        has the message
//	publish, queue is full      the message is dropped for it         has the message
//	publish, ring is full       –                                     the oldest message is overwritten
//	disconnect                  its queue is dropped                  –
//
// Invariant: the ring has the payloads of the last len(ring) messages, and message s is at s modulo len(ring).
type publisher struct {
	topic string // the first frame of every message
	queue int    // messages that may wait for one subscriber
	log   *slog.Logger

	mu   sync.Mutex
	seq  uint64                   // of the next message; guarded by mu
	ring [][]byte                 // payloads; guarded by mu
	subs map[*subscriber]struct{} // guarded by mu
}

// subscriber is one connection to the PUB socket. It gets the messages whose topic begins with one of its
// prefixes.
type subscriber struct {
	messages chan published // a full one drops messages

	mu       sync.Mutex
	prefixes map[string]struct{} // guarded by mu
}

// published is a message with its sequence number.
type published struct {
	seq     uint64
	payload []byte
}

func newPublisher(topic string, ring, queue int, log *slog.Logger) *publisher {
	return &publisher{topic: topic, queue: queue, log: log, ring: make([][]byte, ring), subs: map[*subscriber]struct{}{}}
}

// publish sends events as one message. It encodes them before it returns, so the core may reuse their memory.
func (p *publisher) publish(now time.Time, rank int, events ...kvevent.Raw) {
	payload := kvevent.AppendVLLM(nil, float64(now.UnixNano())/1e9, rank, events)

	p.mu.Lock()
	defer p.mu.Unlock()
	m := published{p.seq, payload}
	p.ring[m.seq%uint64(len(p.ring))] = payload
	p.seq++

	// A full queue must not delay the engine, so messages for slow subscribers are dropped.
	for s := range p.subs {
		if !s.wants(p.topic) {
			continue
		}
		select {
		case s.messages <- m:
		default:
		}
	}
}

// from returns the messages of the ring from the number start on.
func (p *publisher) from(start uint64) []published {
	p.mu.Lock()
	defer p.mu.Unlock()

	// Older messages are overwritten. A reader sees from the first number that they are missing.
	var all []published
	if n := uint64(len(p.ring)); p.seq > n {
		start = max(start, p.seq-n)
	}

	for s := start; s < p.seq; s++ {
		all = append(all, published{s, p.ring[s%uint64(len(p.ring))]})
	}
	return all
}

// serve accepts connections of one socket until ctx ends, closes them, and waits for their goroutines. Errors of
// a connection end that connection alone.
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

// handshake is the longest time that a peer may need for the handshake of ZMQ.
const handshake = 10 * time.Second

// talk serves one connection after the handshake.
func (p *publisher) talk(ctx context.Context, raw net.Conn, kind zmq4.SocketType) error {
	_ = raw.SetDeadline(time.Now().Add(handshake))
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

// feed sends a subscriber its messages. At the same time it reads the subscriptions.
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

	// The reader ends when the connection is closed, and its end stops the writer.
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
			// Messages are written together while more of them wait.
			if len(s.messages) == 0 {
				if err := conn.w.Flush(); err != nil {
					return err
				}
			}
		}
	}
}

// The first byte of a subscription.
const (
	unsubscribe = 0
	subscribe   = 1
)

// listen reads one subscription.
func (s *subscriber) listen(z *zmq4.Conn) error {
	msg, err := z.RecvMsg()
	if err != nil {
		return err
	}
	// Other messages are ignored, as by libzmq.
	if len(msg.Frames) != 1 || len(msg.Frames[0]) == 0 {
		return nil
	}

	s.mu.Lock()
	defer s.mu.Unlock()

	switch prefix := string(msg.Frames[0][1:]); msg.Frames[0][0] {
	case unsubscribe:
		delete(s.prefixes, prefix)
	case subscribe:
		s.prefixes[prefix] = struct{}{}
	}
	return nil
}

// wants reports whether a subscription matches a topic.
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

// answer serves replays as vLLM does. A request is ["", start]. The answer is a message
// ["", topic, seq, payload] for each event message from start on, and ["", "", -1, ""] at the end.
func (p *publisher) answer(z *zmq4.Conn, conn *writeBehind) error {
	for {
		msg, err := z.RecvMsg()
		if err != nil {
			return err
		}
		// A malformed request gets no answer: there is no sequence number to begin with.
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

// writeBehind buffers writes once w is set. The ZMQ library writes every frame separately, which would be a
// system call and a packet for each.
type writeBehind struct {
	net.Conn
	w *bufio.Writer
}

// Write writes to the buffer, or during the handshake to the connection.
func (c *writeBehind) Write(b []byte) (int, error) {
	if c.w == nil {
		return c.Conn.Write(b)
	}
	return c.w.Write(b)
}

// bigEndian returns the eight bytes of a sequence number.
func bigEndian(v uint64) []byte { return binary.BigEndian.AppendUint64(nil, v) }

// splitEndpoint returns the arguments of net.Listen for a ZMQ endpoint. The host * means every interface.
func splitEndpoint(endpoint string) (network, address string, err error) {
	if path, ok := strings.CutPrefix(endpoint, "ipc://"); ok && path != "" {
		return "unix", path, nil
	}

	address, ok := strings.CutPrefix(endpoint, "tcp://")
	if _, _, err := net.SplitHostPort(address); !ok || err != nil {
		return "", "", fmt.Errorf("endpoint %q must look like tcp://127.0.0.1:5557 or ipc:///run/events.sock", endpoint)
	}
	return "tcp", strings.TrimPrefix(address, "*"), nil
}

// listen binds a ZMQ endpoint. As libzmq does, it replaces a Unix socket that a killed process has left. A file
// of another kind is never replaced, because its path can only be a mistake.
func listen(endpoint string) (net.Listener, error) {
	network, address, err := splitEndpoint(endpoint)
	if err != nil {
		return nil, err
	}

	if info, err := os.Lstat(address); network == "unix" && err == nil && info.Mode().Type() == os.ModeSocket {
		_ = os.Remove(address) // if it cannot be removed, it cannot be bound either
	}
	l, err := net.Listen(network, address)
	if err != nil {
		return nil, fmt.Errorf("listen for %s: %w", endpoint, err)
	}
	return l, nil
}
