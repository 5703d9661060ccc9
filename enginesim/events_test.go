package enginesim_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"math"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"

	"github.com/stator-project/stator/enginesim"
	"github.com/stator-project/stator/internal/kv/kvevent"
)

// TestEventsAreReadByAnotherZMQLibrary reads published and replayed events with the SUB and DEALER sockets of a
// library: both are the same messages.
func TestEventsAreReadByAnotherZMQLibrary(t *testing.T) {
	r := start(t, func(c *enginesim.Config) { c.Topic = "kv-events"; c.Engine.Blocks = 8; c.Rank = 2 })
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	sub := zmq4.NewSub(ctx)
	defer sub.Close()
	if err := sub.Dial(r.EventsEndpoint()); err != nil {
		t.Fatal(err)
	}
	if err := sub.SetOption(zmq4.OptionSubscribe, "kv-"); err != nil {
		t.Fatal(err)
	}
	received := make(chan zmq4.Msg, 100)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			m, err := sub.Recv()
			if err != nil {
				return
			}
			received <- m
		}
	}()

	// A subscription is not acknowledged: ask until a message arrives.
	var first zmq4.Msg
	for first.Frames == nil {
		r.ask("/v1/completions", `{"model":"tiny","prompt":"ABCDEFGHIJ","max_tokens":1}`)
		r.post("/reset_prefix_cache", "")
		select {
		case first = <-received:
		case <-time.After(20 * time.Millisecond):
		}
	}
	if len(first.Frames) != 3 || string(first.Frames[0]) != "kv-events" {
		t.Fatalf("%v", first)
	}
	r.ask("/v1/completions", `{"model":"tiny","prompt":"ZBCDEFGHIJKLMNOP","max_tokens":1,"cache_salt":"s"}`)

	dealer := zmq4.NewDealer(ctx)
	defer dealer.Close()
	if err := dealer.Dial(r.ReplayEndpoint()); err != nil {
		t.Fatal(err)
	}
	if err := dealer.Send(zmq4.NewMsgFrom(nil, binary.BigEndian.AppendUint64(nil, 0))); err != nil {
		t.Fatal(err)
	}
	replayed := map[uint64][]byte{}
	for {
		m, err := dealer.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if len(m.Frames) != 4 || len(m.Frames[0]) != 0 {
			t.Fatalf("%v", m)
		}
		seq := binary.BigEndian.Uint64(m.Frames[2])
		if seq == math.MaxUint64 {
			break
		}
		if seq != uint64(len(replayed)) {
			t.Fatalf("message %d comes as number %d", seq, len(replayed))
		}
		replayed[seq] = m.Frames[3]
	}

	var batch kvevent.Batch
	stored := 0
	for _, payload := range replayed {
		if err := kvevent.VLLM.Decode(payload, kvevent.Limits{}, &batch); err != nil {
			t.Fatal(err)
		}
		if batch.Rank != 2 || math.Abs(float64(time.Now().Unix())-batch.Seconds) > 60 {
			t.Errorf("rank %d, time %v", batch.Rank, batch.Seconds)
		}
		for _, e := range batch.Events {
			if e.Kind == kvevent.Stored {
				stored += len(e.Blocks)
			}
		}
	}
	if stored < 6 {
		t.Errorf("%d blocks stored in %d messages", stored, len(replayed))
	}
	// The replay has the same messages as were sent live.
	for live := first; ; live = <-received {
		seq := binary.BigEndian.Uint64(live.Frames[1])
		if !bytes.Equal(live.Frames[2], replayed[seq]) {
			t.Errorf("message %d: live %q, replayed %q", seq, live.Frames[2], replayed[seq])
		}
		if seq+1 == uint64(len(replayed)) {
			break
		}
	}
	cancel()
	sub.Close()
	<-done
}
