package kvsource_test

import (
	"context"
	"encoding/binary"
	"math"
	"sync"
	"testing"

	"github.com/go-zeromq/zmq4"

	"github.com/stator-project/stator/internal/kvsource"
	"github.com/stator-project/stator/test/testkit"
)

// replayOnly is a replay socket of the ZMQ library with the test's messages. Its answers have no
// topic, as those of older engines.
type replayOnly struct {
	endpoint string
	mu       sync.Mutex
	payloads [][]byte
}

func (r *replayOnly) set(p [][]byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.payloads = p
}

func newReplayOnly(t *testing.T) *replayOnly {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	socket := zmq4.NewRouter(ctx)
	if err := socket.Listen(anyPort); err != nil {
		t.Fatal(err)
	}
	r := &replayOnly{endpoint: "tcp://" + socket.Addr().String()}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			m, err := socket.Recv()
			if ctx.Err() != nil {
				return
			}
			if err != nil || len(m.Frames) != 3 {
				continue
			}
			start := binary.BigEndian.Uint64(m.Frames[2])
			r.mu.Lock()
			for seq := start; seq < uint64(len(r.payloads)); seq++ {
				_ = socket.SendMulti(zmq4.NewMsgFrom(m.Frames[0], nil, binary.BigEndian.AppendUint64(nil, seq), r.payloads[seq]))
			}
			r.mu.Unlock()
			_ = socket.SendMulti(zmq4.NewMsgFrom(m.Frames[0], nil, binary.BigEndian.AppendUint64(nil, math.MaxUint64), nil))
		}
	}()
	t.Cleanup(func() {
		cancel()
		socket.Close()
		<-done
	})
	return r
}

// TestGapFromLibrarySockets: a PUB socket of the ZMQ library skips numbers, and its ROUTER socket replays
// them.
func TestGapFromLibrarySockets(t *testing.T) {
	replay := newReplayOnly(t)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	pub := zmq4.NewPub(ctx)
	defer pub.Close()
	if err := pub.Listen(anyPort); err != nil {
		t.Fatal(err)
	}
	l := listen(t, "tcp://"+pub.Addr().String(), replay.endpoint, func(c *kvsource.Config, _ *consumer) { c.Topic, c.Probe = "kv", -1 })
	testkit.Eventually(t, "it is subscribed", func() bool { return len(pub.(zmq4.Topics).Topics()) == 1 })
	all := payloads(10)
	for seq, payload := range all {
		replay.set(all[:seq]) // the newest is not yet to be replayed
		if seq >= 3 && seq < 7 {
			continue
		}
		for _, topic := range []string{"other", "kv-events"} {
			if err := pub.SendMulti(zmq4.NewMsgFrom([]byte(topic), binary.BigEndian.AppendUint64(nil, uint64(seq)), payload)); err != nil {
				t.Fatal(err)
			}
		}
		testkit.Eventually(t, "the message is here", l.reached(uint64(seq)+1))
	}
	l.read(func() {
		if len(l.accepted) != 10 || l.restarts != 0 || l.gaps != 1 {
			t.Errorf("accepted %d, restarts %d, gaps %d", l.accepted, l.restarts, l.gaps)
		}
	})
	if s := l.Stats(); s.Gaps != 1 || s.Unrecovered != 0 || s.Received != 6 {
		t.Errorf("%v", s)
	}
}
