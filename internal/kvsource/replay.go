package kvsource

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/zeebo/xxh3"
)

// errGapStays says that the engine's buffer no longer holds what is missing.
var errGapStays = errors.New("the engine no longer has the missing messages")

// errStop ends a replay early, without blame.
var errStop = errors.New("stop")

// replay hands on everything from number from on. Where apply wants something earlier still,
// as it does when it notices a restart, it starts again from there, once.
func (s *Source) replay(ctx context.Context, from uint64) error {
	for range 2 {
		earlier, again := uint64(0), false
		err := s.fetch(ctx, from, func(seq uint64, payload []byte) error {
			s.count(func(st *Stats) { st.Replayed++ })
			resume, gap := s.deliver(seq, payload)
			if gap {
				earlier, again = resume, resume < from
				return errGapStays
			}
			s.onConn.replayed = seq + 1
			return nil
		})
		if !again {
			return err
		}
		from = earlier
	}
	return errGapStays
}

// replayAfterLast hands on everything after the last message, if the engine is the process
// that sent that.
func (s *Source) replayAfterLast(ctx context.Context) (same bool, err error) {
	before := s.last
	err = s.fetch(ctx, before.seq, func(seq uint64, payload []byte) error {
		if !same {
			if same = seq == before.seq && xxh3.Hash(payload) == before.sum; !same {
				return errStop
			}
			s.onConn.replayed = max(s.onConn.replayed, before.seq+1)
			return nil
		}
		s.count(func(st *Stats) { st.Replayed++ })
		if _, gap := s.deliver(seq, payload); gap {
			return errGapStays
		}
		s.onConn.replayed = seq + 1
		return nil
	})
	if errors.Is(err, errStop) {
		err = nil
	}
	return same, err
}

// fetch asks the replay socket for everything from number from on and calls each for it, until
// the engine has no more or each returns an error.
func (s *Source) fetch(ctx context.Context, from uint64, each func(seq uint64, payload []byte) error) error {
	s.count(func(st *Stats) { st.Replays++ })
	err := s.fetchAll(ctx, from, each)
	if err != nil && !errors.Is(err, errStop) && ctx.Err() == nil {
		s.failed("replay ended early", err, func(st *Stats) { st.ReplayErrors++ })
	}
	return err
}

func (s *Source) fetchAll(ctx context.Context, from uint64, each func(seq uint64, payload []byte) error) error {
	z, conn, err := dial(ctx, s.cfg.Replay, zmq4.Dealer, &s.cfg)
	if err != nil {
		return err
	}
	defer conn.Close()
	ask := binary.BigEndian.AppendUint64(nil, from)
	if err := z.SendMsg(zmq4.NewMsgFrom(nil, ask)); err != nil {
		return fmt.Errorf("ask for a replay: %w", err)
	}
	for {
		_ = conn.SetReadDeadline(time.Now().Add(s.cfg.Timeout))
		msg, err := z.RecvMsg()
		if err != nil {
			return fmt.Errorf("read replay: %w", err)
		}
		if msg.Type == zmq4.CmdMsg {
			continue
		}
		seq, payload, end, err := parseReplay(msg.Frames)
		if err != nil || end {
			return err
		}
		if seq < from { // an engine may begin at the start of its buffer
			continue
		}
		if err := each(seq, payload); err != nil {
			return err
		}
	}
}

// parseReplay reads ["", topic, sequence number, payload], or the same without a topic from
// older engines. The last message is -1 with nothing.
func parseReplay(frames [][]byte) (seq uint64, payload []byte, end bool, err error) {
	n := len(frames)
	if n < 2 || n > 4 || len(frames[n-2]) != 8 {
		return 0, nil, false, fmt.Errorf("read replay: a message of %d frames: want delimiter, topic, sequence number, payload", n)
	}
	seq, payload = binary.BigEndian.Uint64(frames[n-2]), frames[n-1]
	return seq, payload, seq == math.MaxUint64, nil
}
