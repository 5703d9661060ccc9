package kvsource

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/go-zeromq/zmq4"
)

// errGapStays means that the consumer still misses messages after a replay.
var errGapStays = errors.New("the engine no longer has the missing messages")

// errOtherProcess ends a replay whose first message is not the one asked for.
var errOtherProcess = errors.New("the engine is another process")

// replay delivers every message from number from on. If the consumer asks for an earlier number, as
// it does when it notices a restart, the replay starts again from there, once.
func (s *Source) replay(ctx context.Context, from uint64) error {
	for range 2 {
		earlier, again := uint64(0), false
		err := s.fetch(ctx, from, func(m liveMessage) error {
			s.count(func(st *Stats) { st.Replayed++ })
			resume, gap := s.deliver(m)
			if gap {
				earlier, again = resume, resume < from
				return errGapStays
			}
			s.progress.replayed = m.seq + 1
			return nil
		})
		if !again {
			return err
		}
		from = earlier
	}
	return errGapStays
}

// replayAfterLast delivers every message after the last one accepted if the engine is the process
// that sent it. It returns same false, and delivers nothing, if the engine is another process.
func (s *Source) replayAfterLast(ctx context.Context) (same bool, err error) {
	last := s.last
	err = s.fetch(ctx, last.seq, func(m liveMessage) error {
		if !same {
			same = s.isLast(m.seq, m.payload)
			if !same {
				return errOtherProcess
			}
			s.keepLast = false
			s.progress.replayed = max(s.progress.replayed, last.seq+1)
			return nil
		}

		s.count(func(st *Stats) { st.Replayed++ })
		if _, gap := s.deliver(m); gap {
			return errGapStays
		}
		s.progress.replayed = m.seq + 1
		return nil
	})
	if errors.Is(err, errOtherProcess) {
		err = nil
	}
	return same, err
}

// fetch asks the replay socket for every message from number from on, and calls each for it until
// the engine has no more or each returns an error.
func (s *Source) fetch(ctx context.Context, from uint64, each func(m liveMessage) error) error {
	err := s.fetchAll(ctx, from, each)
	if err != nil && !errors.Is(err, errOtherProcess) && ctx.Err() == nil {
		s.failed("read replay", err, func(st *Stats) { st.ReplayErrors++ })
	}
	return err
}

// fetchAll is fetch without the counters. Each wait for a message is bounded by Config.Timeout, so an engine
// that stops in the middle of a replay is an error.
func (s *Source) fetchAll(ctx context.Context, from uint64, each func(m liveMessage) error) error {
	z, conn, err := dial(ctx, s.cfg.Replay, zmq4.Dealer, &s.cfg)
	if err != nil {
		return err
	}
	defer conn.Close()

	request := binary.BigEndian.AppendUint64(nil, from)
	if err := z.SendMsg(zmq4.NewMsgFrom(nil, request)); err != nil {
		return fmt.Errorf("send request: %w", err)
	}

	for {
		_ = conn.SetReadDeadline(time.Now().Add(s.cfg.Timeout))
		msg, err := z.RecvMsg()
		if err != nil {
			return err
		}
		if msg.Type == zmq4.CmdMsg {
			continue
		}

		topic, m, end, err := parseReplay(msg.Frames)
		if err != nil || end {
			return err
		}
		if m.seq < from { // an engine may begin at the start of its buffer
			continue
		}
		m.other = s.isOther(topic)
		if err := each(m); err != nil {
			return err
		}
	}
}

// endOfReplay is the sequence number of the message that ends a replay: -1.
const endOfReplay = math.MaxUint64

// parseReplay reads [delimiter, topic, sequence number, payload]. Older engines omit the topic, and
// the delimiter may be missing.
func parseReplay(frames [][]byte) (topic []byte, m liveMessage, end bool, err error) {
	n := len(frames)
	if n < 2 || n > 4 || len(frames[n-2]) != seqBytes {
		return nil, m, false, fmt.Errorf("a message of %d frames: want delimiter, topic, sequence number, payload", n)
	}
	if n == 4 {
		topic = frames[1]
	}
	m.seq, m.payload = binary.BigEndian.Uint64(frames[n-2]), frames[n-1]
	return topic, m, m.seq == endOfReplay, nil
}
