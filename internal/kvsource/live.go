package kvsource

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/go-zeromq/zmq4"

	"github.com/stator-project/stator/internal/kv/kvevent"
)

// liveMessage is one message of the event socket, or the news that a connection was made;
// those that follow came over it.
type liveMessage struct {
	connected bool
	seq       uint64
	payload   []byte
}

// subscribe keeps a connection to the event socket until ctx ends.
func (s *Source) subscribe(ctx context.Context) {
	p := pause{min: s.cfg.RetryMin, max: s.cfg.RetryMax}
	quiet := false // after the first of a row of attempts in vain
	once := s.listen
	if s.cfg.Bind {
		once = s.accept
	}
	for ctx.Err() == nil {
		err := once(ctx, p.reset)
		if ctx.Err() != nil {
			return
		}
		up := s.connected()
		s.lost(err, quiet && !up)
		if up {
			s.cfg.Connected(false)
		}
		quiet = true
		p.wait(ctx)
	}
}

// listen makes one connection and passes its messages on until it breaks.
func (s *Source) listen(ctx context.Context, connected func()) error {
	z, conn, err := dial(ctx, s.cfg.Endpoint, zmq4.Sub, &s.cfg)
	if err != nil {
		return err
	}
	return s.hear(ctx, z, conn, connected)
}

// hear subscribes over a connection and passes its messages on until it breaks.
func (s *Source) hear(ctx context.Context, z *zmq4.Conn, conn *boundedConn, connected func()) error {
	defer conn.Close()
	if err := z.SendMsg(zmq4.NewMsg(append([]byte{1}, s.cfg.Topic...))); err != nil {
		return fmt.Errorf("subscribe: %w", err)
	}
	connected()
	s.count(func(st *Stats) { st.Connected = true; st.Connects++ })
	s.cfg.Connected(true)
	s.cfg.Logger.Debug("event source connected", "endpoint", s.cfg.Endpoint, "rank", s.cfg.Rank)
	if !s.push(ctx, liveMessage{connected: true}) {
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
			s.failed("event message not understood", fmt.Errorf("%d frames: want topic, sequence number, payload", len(msg.Frames)),
				func(st *Stats) { st.Malformed++ })
			continue
		}
		s.count(func(st *Stats) { st.Received++; st.Bytes += uint64(len(m.payload)) })
		if !s.push(ctx, m) {
			return ctx.Err()
		}
	}
}

func (s *Source) push(ctx context.Context, m liveMessage) bool {
	select {
	case s.live <- m:
		return true
	case <-ctx.Done():
		return false
	}
}

// parseLive reads [topic, sequence number, payload] or, from Dynamo's event plane, [topic,
// publisher, sequence number, frame].
func parseLive(frames [][]byte, d kvevent.Dialect) (liveMessage, bool) {
	if d == kvevent.Dynamo && len(frames) == 4 {
		frames = frames[1:]
	}
	if len(frames) != 3 || len(frames[1]) != 8 {
		return liveMessage{}, false
	}
	return liveMessage{seq: binary.BigEndian.Uint64(frames[1]), payload: frames[2]}, true
}

// pause doubles from min to max. The zero position is no pause at all.
type pause struct {
	min, max time.Duration
	next     time.Duration
	until    time.Time
}

func (p *pause) reset() { p.next, p.until = 0, time.Time{} }

// start begins the next pause.
func (p *pause) start() {
	p.next = min(max(p.min, 2*p.next), p.max)
	p.until = time.Now().Add(p.next)
}

func (p *pause) over() bool { return !time.Now().Before(p.until) }

// wait sits the next pause out, or until ctx ends.
func (p *pause) wait(ctx context.Context) {
	p.start()
	t := time.NewTimer(p.next)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
