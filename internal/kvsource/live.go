package kvsource

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/go-zeromq/zmq4"

	"github.com/stator-project/stator/internal/kv/kvevent"
)

// liveMessage is one message of the event socket. If connection is not 0 it is no message but the
// number of a new connection, over which the messages after it came.
type liveMessage struct {
	connection uint64
	seq        uint64
	other      bool // of a topic that is not this source's
	payload    []byte
}

// subscribe keeps a connection to the event socket until ctx ends.
func (s *Source) subscribe(ctx context.Context) {
	open := s.dialEvents
	if s.cfg.Bind {
		open = s.accept
	}

	pauses := s.cfg.backoff()
	failedBefore := false
	for ctx.Err() == nil {
		err := open(ctx, pauses.Reset)
		if ctx.Err() != nil {
			return
		}

		wasUp := s.connected()
		s.lost(err, failedBefore && !wasUp)
		if wasUp {
			s.consumer.Connected(false)
		}
		failedBefore = true
		_ = pauses.Wait(ctx)
	}
}

// dialEvents makes one connection and reads its messages until it breaks. It calls succeeded once
// the connection is made.
func (s *Source) dialEvents(ctx context.Context, succeeded func()) error {
	z, conn, err := dial(ctx, s.cfg.Endpoint, zmq4.Sub, &s.cfg)
	if err != nil {
		return err
	}
	return s.readEvents(ctx, z, conn, succeeded)
}

// readEvents subscribes over a connection and passes its messages to Run until it breaks.
func (s *Source) readEvents(ctx context.Context, z *zmq4.Conn, conn *boundedConn, succeeded func()) error {
	defer conn.Close()
	if err := z.SendMsg(zmq4.NewMsg(append([]byte{subscribeTopic}, s.cfg.Topic...))); err != nil {
		return fmt.Errorf("subscribe: %w", err)
	}

	succeeded()
	number := s.countConnection()
	s.cfg.Logger.Debug("event source connected", "endpoint", s.cfg.Endpoint, "rank", s.cfg.Rank)
	if !s.pass(ctx, liveMessage{connection: number}) {
		return ctx.Err()
	}

	for {
		msg, err := z.RecvMsg()
		if err != nil {
			return err
		}
		if msg.Type == zmq4.CmdMsg { // a heartbeat
			continue
		}

		m, ok := parseLive(msg.Frames, s.cfg.Dialect)
		if !ok {
			s.failed("read event message", fmt.Errorf("%d frames: want topic, sequence number, payload", len(msg.Frames)),
				func(st *Stats) { st.Malformed++ })
			continue
		}
		m.other = s.isOther(msg.Frames[0])
		s.count(func(st *Stats) { st.Received++ })
		if !s.pass(ctx, m) {
			return ctx.Err()
		}
	}
}

func (s *Source) isOther(topic []byte) bool { return s.cfg.Match != nil && !s.cfg.Match(topic) }

// subscribeTopic begins the message by which a ZMQ subscriber names a topic.
const subscribeTopic = 1

// pass hands m to Run. It waits while the buffer is full, and returns false when ctx ends. A message that
// exceeds Config.BufferBytes alone passes through an empty buffer.
func (s *Source) pass(ctx context.Context, m liveMessage) bool {
	size := int64(len(m.payload))
	for s.waiting.Load() > 0 && s.waiting.Load()+size > int64(s.cfg.BufferBytes) {
		s.count(func(st *Stats) { st.BufferFull++ })
		select {
		case <-s.freed:
		case <-ctx.Done():
			return false
		}
	}
	s.waiting.Add(size)

	select {
	case s.live <- m:
		return true
	case <-ctx.Done():
		return false
	}
}

// taken records that Run has taken m out of the buffer.
func (s *Source) taken(m liveMessage) {
	s.waiting.Add(-int64(len(m.payload)))
	select {
	case s.freed <- struct{}{}:
	default:
	}
}

// parseLive reads [topic, sequence number, payload] or, from Dynamo's event plane, [topic,
// publisher, sequence number, frame].
func parseLive(frames [][]byte, d kvevent.Dialect) (liveMessage, bool) {
	if d == kvevent.Dynamo && len(frames) == 4 {
		frames = frames[1:]
	}
	if len(frames) != 3 || len(frames[1]) != seqBytes {
		return liveMessage{}, false
	}
	return liveMessage{seq: binary.BigEndian.Uint64(frames[1]), payload: frames[2]}, true
}

// seqBytes is the size of a sequence number in a frame: a big-endian integer.
const seqBytes = 8
