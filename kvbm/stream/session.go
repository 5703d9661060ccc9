package stream

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/stator-project/stator/internal/kv/block"
)

// session is a connection after its handshake. The reader changes it, and the writer waits for changes.
type session struct {
	server *Server
	conn   *tls.Conn
	wake   chan struct{} // has room for one
	calls  Calls         // nil if none are answered; of the writer

	mu     sync.Mutex
	credit int         // bytes that may be sent; guarded by mu, as all below
	queue  []*incoming // the first is being sent
	busy   []uint32    // requests to be answered as busy
	ask    *summaryAsk // to be answered; nil if none is
	// waiting are the calls to be answered.
	waiting []incomingCall
}

// summaryAsk is a client that asks for a summary, and the version that it has.
type summaryAsk struct {
	id  uint32
	has uint64
}

// incoming is a request. next is the index of the key that is sent next.
type incoming struct {
	id   uint32
	keys []block.Key
	next int
}

// readFrames reads frames until the connection ends, or the client breaks a rule.
func (s *session) readFrames() {
	r := bufio.NewReaderSize(s.conn, 4<<10)
	content := make([]byte, 0, 256)
	for {
		_ = s.conn.SetReadDeadline(time.Now().Add(s.server.cfg.IdleTimeout))
		f, err := readFrame(r, false, s.server.bytes)
		if err != nil || f.kind == kindHello {
			return
		}

		// The length is bounded by the kind, and the rest of a frame comes soon after its beginning.
		_ = s.conn.SetReadDeadline(time.Now().Add(s.server.cfg.HandshakeTimeout))
		if cap(content) < f.length {
			content = make([]byte, 0, f.length)
		}
		content = content[:f.length]
		if _, err := io.ReadFull(r, content); err != nil || !s.accept(f.kind, content) {
			return
		}
		select {
		case s.wake <- struct{}{}:
		default:
		}
	}
}

// accept applies a frame, and reports whether the client may go on.
func (s *session) accept(k kind, content []byte) bool {
	number := binary.LittleEndian.Uint32(content)
	s.mu.Lock()
	defer s.mu.Unlock()

	switch k {
	case kindCredit:
		s.credit = min(s.credit+int(number), s.server.cfg.InFlight)
	case kindCancel:
		for i, r := range s.queue {
			if r.id == number {
				s.queue = append(s.queue[:i:i], s.queue[i+1:]...)
				break
			}
		}
	case kindRequest:
		s.server.counted.requests.Add(1)
		if len(s.queue) >= s.server.cfg.Requests {
			s.server.counted.busy.Add(1)
			s.busy = append(s.busy, number)
			return len(s.busy) <= mostBusy
		}
		id, keys := parseRequest(content)
		s.queue = append(s.queue, &incoming{id: id, keys: keys})
	case kindAsk:
		id, has := parseSummary(content)
		s.ask = &summaryAsk{id, has}
	case kindCall:
		s.waiting = append(s.waiting, incomingCall{number, slices.Clone(content[4:])})
		return s.calls != nil && len(s.waiting) <= mostCalls
	}
	return true
}

// write sends blocks until ctx ends, or a write fails.
func (s *session) write(ctx context.Context) {
	for {
		if s.sendSummary() != nil {
			return
		}
		called, err := s.answerCall()
		if err != nil {
			return
		}
		busy, id, first, keys := s.take()
		switch {
		case len(busy) > 0:
			if s.send(net.Buffers{busy}) != nil {
				return
			}
		case len(keys) > 0:
			if s.sendBlocks(id, first, keys) != nil {
				return
			}
		case called: // there may be more
		default:
			select {
			case <-s.wake:
			case <-ctx.Done():
				return
			}
		}
	}
}

// take returns what can be sent now: answers to requests that are too many, or as many keys of a request as there is credit for. first
// is the index of the first of them.
func (s *session) take() (busy []byte, id uint32, first int, keys []block.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range s.busy {
		busy = appendNumber(busy, kindBusy, id)
	}
	s.busy = s.busy[:0]
	n := min(s.credit, s.server.cfg.WriteBytes) / s.server.bytes
	if len(busy) > 0 || len(s.queue) == 0 || n == 0 {
		return busy, 0, 0, nil
	}

	r := s.queue[0]
	first = r.next
	keys = r.keys[first:min(first+n, len(r.keys))]
	r.next += len(keys)
	if r.next == len(r.keys) {
		s.queue = s.queue[1:]
	}
	s.credit -= len(keys) * s.server.bytes
	return nil, r.id, first, keys
}

// sendBlocks sends blocks out of the source's memory by one system call, if the connection can do that.
func (s *session) sendBlocks(id uint32, first int, keys []block.Key) error {
	blocks, release := s.server.cfg.Source.Acquire(keys)
	defer release()

	headers := make([]byte, 0, len(keys)*(frameBytes+blockHeader))
	buffers := make(net.Buffers, 0, 2*len(keys))
	missing := 0
	for i, b := range blocks {
		f := blockFrame{id: id, index: uint32(first + i), generation: b.Generation, sum: b.Sum, length: uint32(len(b.Data))}
		if len(b.Data) != s.server.bytes {
			f = blockFrame{id: id, index: f.index}
			missing++
		}
		from := len(headers)
		headers = f.append(headers)
		buffers = append(buffers, headers[from:])
		if f.length > 0 {
			buffers = append(buffers, b.Data)
		}
	}

	// Missing blocks take no credit.
	s.mu.Lock()
	s.credit += missing * s.server.bytes
	s.mu.Unlock()
	s.server.counted.missing.Add(int64(missing))
	s.server.counted.blocks.Add(int64(len(blocks) - missing))
	return s.send(buffers)
}

// sendSummary answers a client that has asked for a summary.
func (s *session) sendSummary() error {
	s.mu.Lock()
	ask := s.ask
	s.ask = nil
	s.mu.Unlock()
	if ask == nil {
		return nil
	}

	var version uint64
	var content []byte
	if s.server.cfg.Summary != nil {
		version, content = s.server.cfg.Summary(ask.has)
	}
	if len(content) > MostSummary {
		return fmt.Errorf("a summary of %d bytes: %d are possible", len(content), MostSummary)
	}
	return s.send(net.Buffers{appendSummary(nil, kindSummary, ask.id, version, len(content)), content})
}

func (s *session) send(buffers net.Buffers) error {
	_ = s.conn.SetWriteDeadline(time.Now().Add(s.server.cfg.WriteTimeout))
	_, err := buffers.WriteTo(s.conn)
	return err
}
