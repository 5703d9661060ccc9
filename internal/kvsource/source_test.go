package kvsource_test

import (
	"encoding/binary"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stator-project/stator/enginesim"
	"github.com/stator-project/stator/internal/kv/kvevent"
	"github.com/stator-project/stator/internal/kvsource"
	"github.com/stator-project/stator/test/testkit"
)

const anyPort = "tcp://127.0.0.1:0"

// TestLateSourceReplays: a source that starts late replays the messages of before and continues live.
// Each message arrives once and in order, also those published during the replay.
func TestLateSourceReplays(t *testing.T) {
	sim, _ := startSim(t, anyPort, anyPort, nil)
	for i := range 20 {
		ask(t, sim, fmt.Sprintf("%d is a prompt", i))
	}
	l := listen(t, sim.EventsEndpoint(), sim.ReplayEndpoint(), func(c *kvsource.Config, _ *consumer) { c.Rank = 3 })
	for i := range 40 {
		ask(t, sim, fmt.Sprintf("+%d is another prompt", i))
	}
	testkit.Eventually(t, "all 60 are here", l.reached(60))
	l.read(func() {
		for i, seq := range l.accepted {
			if seq != uint64(i) {
				t.Fatalf("message %d comes as number %d", seq, i)
			}
		}
		if l.restarts != 0 || l.unknown != 0 || len(l.ranks) != 1 || !l.ranks[3] || l.stored < 60*3 {
			t.Errorf("restarts %d, unknown %d, ranks %v, stored %d", l.restarts, l.unknown, l.ranks, l.stored)
		}
	})
	// The number is counted after the consumer has the message.
	testkit.Eventually(t, "the last number is counted", func() bool { return l.Stats().LastSeq == 59 })
	if s := l.Stats(); !s.Connected || s.Connects != 1 || s.Restarts != 0 || s.Malformed != 0 || s.Replayed < 20 {
		t.Errorf("%v", s)
	}
}

// TestSourceWaitsForItsEngine starts the source before the engine.
func TestSourceWaitsForItsEngine(t *testing.T) {
	events, replay := "tcp://"+testkit.Address(t), "tcp://"+testkit.Address(t)
	l := listen(t, events, replay, nil)
	testkit.Eventually(t, "it has tried", func() bool { return l.Stats().LastError != "" })
	sim, _ := startSim(t, events, replay, nil)
	ask(t, sim, "hello engine")
	testkit.Eventually(t, "the message is here", l.reached(1))
}

// TestBrokenConnectionsLoseNothing: no message is lost, and the source reports no restart.
func TestBrokenConnectionsLoseNothing(t *testing.T) {
	sim, _ := startSim(t, anyPort, anyPort, nil)
	events, replay := forward(t, sim.EventsEndpoint()), forward(t, sim.ReplayEndpoint())
	ups := make(chan bool, 100)
	l := listen(t, events.endpoint(), replay.endpoint(), func(_ *kvsource.Config, l *consumer) { l.ups = ups })
	connects := uint64(1)
	for i := range 60 {
		if i%20 == 10 {
			testkit.Eventually(t, "it is connected", func() bool { return l.Stats().Connects == connects })
		}
		ask(t, sim, fmt.Sprintf("%d is a prompt", i))
		switch i {
		case 20:
			events.cut()
			connects++
		case 40:
			events.cut()
			replay.cut()
			connects++
		}
	}
	testkit.Eventually(t, "all 60 are here", l.reached(60))
	testkit.Eventually(t, "it has connected three times", func() bool { return l.Stats().Connects == 3 })
	if s := l.Stats(); s.Restarts != 0 {
		t.Errorf("%v", s)
	}
	if l.restarts != 0 {
		t.Errorf("%d restarts", l.restarts)
	}
	for _, want := range []bool{true, false, true, false, true} {
		if up := <-ups; up != want {
			t.Errorf("Connected(%v), want %v", up, want)
		}
	}
}

// TestEngineRestarts: a new engine process counts from 0 again. The source delivers everything from
// its first message, whether it has counted past the old process or not when the source is back.
func TestEngineRestarts(t *testing.T) {
	for name, messages := range map[string]int{"behind": 2, "past": 20} {
		t.Run(name, func(t *testing.T) {
			events, replay := "tcp://"+testkit.Address(t), "tcp://"+testkit.Address(t)
			sim, stop := startSim(t, events, replay, nil)
			eventsNet, replayNet := forward(t, events), forward(t, replay)
			l := listen(t, eventsNet.endpoint(), replayNet.endpoint(), nil)
			for i := range 8 {
				ask(t, sim, fmt.Sprintf("%d of the first life", i))
			}
			testkit.Eventually(t, "the first life is here", l.reached(8))

			// The network is back only after the new process has published all its messages.
			stop()
			eventsNet.l.Close()
			sim, _ = startSim(t, events, replay, nil)
			for i := range messages {
				ask(t, sim, fmt.Sprintf("%d of the second life", i))
			}
			back, err := net.Listen("tcp", eventsNet.l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			eventsNet2 := &forwarder{l: back, to: strings.TrimPrefix(events, "tcp://")}
			eventsNet2.wg.Go(eventsNet2.accept)
			t.Cleanup(func() { back.Close(); eventsNet2.cut(); eventsNet2.wg.Wait() })

			testkit.Eventually(t, "the second life is here", l.reached(uint64(messages)))
			l.read(func() {
				if l.restarts != 1 || l.reported != 1 || len(l.accepted) != 8+messages || l.accepted[8] != 0 {
					t.Errorf("%d restarts, accepted %d", l.restarts, l.accepted)
				}
			})
			if s := l.Stats(); s.Restarts != 1 {
				t.Errorf("%v", s)
			}
		})
	}
}

// TestProbeFindsLostTail: the last messages before a silence are lost, which no later message shows.
func TestProbeFindsLostTail(t *testing.T) {
	replay := newReplayOnly(t)
	sim, _ := startSim(t, anyPort, "", nil)
	l := listen(t, sim.EventsEndpoint(), replay.endpoint, nil)
	testkit.Eventually(t, "it is connected", func() bool { return l.Stats().Connected })
	replay.set(payloads(3))
	testkit.Eventually(t, "the messages that were never live are here", l.reached(3))
	replay.set(payloads(5))
	testkit.Eventually(t, "and the later ones", l.reached(5))
	if l.restarts != 0 {
		t.Errorf("%d restarts", l.restarts)
	}
}

// TestReplayBufferOverflow: messages beyond the engine's buffer are gone. The source replays until the
// consumer gives the gap up, and then begins with the oldest message.
func TestReplayBufferOverflow(t *testing.T) {
	sim, _ := startSim(t, anyPort, anyPort, func(c *enginesim.Config) { c.ReplayBuffer = 10 })
	for i := range 25 {
		ask(t, sim, fmt.Sprintf("%d is a prompt", i))
	}
	l := listen(t, sim.EventsEndpoint(), sim.ReplayEndpoint(), func(_ *kvsource.Config, l *consumer) { l.giveUp = time.Now().Add(100 * time.Millisecond) })
	testkit.Eventually(t, "the end is here", l.reached(25))
	l.read(func() {
		if len(l.accepted) != 10 || l.accepted[0] != 15 || l.gaps == 0 {
			t.Errorf("gaps %d, accepted %d", l.gaps, l.accepted)
		}
	})
}

// TestSlowConsumer: while the consumer is slow a bounded number of messages waits in the source. The
// engine queues the rest, drops some, and they are replayed.
func TestSlowConsumer(t *testing.T) {
	sim, _ := startSim(t, anyPort, anyPort, func(c *enginesim.Config) { c.SubscriberQueue = 4 })
	block := make(chan struct{})
	l := listen(t, sim.EventsEndpoint(), sim.ReplayEndpoint(), func(c *kvsource.Config, l *consumer) { c.Buffer = 4; l.block = block })
	testkit.Eventually(t, "it is connected", func() bool { return l.Stats().Connected })
	for i := range 100 {
		ask(t, sim, fmt.Sprintf("%d %s", i, strings.Repeat("x", 20)))
		if w := l.Stats().Waiting; w > 4 {
			t.Fatalf("%d messages wait", w)
		}
	}
	close(block)
	testkit.Eventually(t, "all 100 are here", l.reached(100))
	l.read(func() {
		if len(l.accepted) != 100 || l.restarts != 0 {
			t.Errorf("accepted %d, restarts %d", l.accepted, l.restarts)
		}
	})
}

// TestMalformedMessage: a message that cannot be decoded is counted and does not stop the others.
func TestMalformedMessage(t *testing.T) {
	replay := newReplayOnly(t)
	sim, _ := startSim(t, anyPort, "", nil)
	all := payloads(3)
	all[1] = []byte("no msgpack")
	replay.set(all)
	l := listen(t, sim.EventsEndpoint(), replay.endpoint, nil)
	testkit.Eventually(t, "all are here", l.reached(3))
	if s := l.Stats(); s.Malformed != 1 || !strings.Contains(s.LastError, "decode vllm events") || l.unknown != 1 {
		t.Errorf("%v, %s, unknown %d", s, s.LastError, l.unknown)
	}
}

// TestOversizedFrame: a frame of 4 exabytes is refused before memory is allocated for it.
func TestOversizedFrame(t *testing.T) {
	hostile, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := hostile.Accept()
			if err != nil {
				return
			}
			greeting := make([]byte, 64)
			greeting[0], greeting[9], greeting[10] = 0xff, 0x7f, 3
			copy(greeting[12:], "NULL")
			_, _ = c.Write(greeting)
			_, _ = c.Write(binary.BigEndian.AppendUint64([]byte{6}, 1<<62))
			_, _ = c.Read(make([]byte, 1))
			_, _ = c.Write(make([]byte, 1<<16))
			c.Close()
		}
	}()
	l := listen(t, "tcp://"+hostile.Addr().String(), "", nil)
	testkit.Eventually(t, "it is refused", func() bool { return strings.Contains(l.Stats().LastError, "a message of more than") })
	hostile.Close()
	<-done
}

// TestConfigIsValidated lists configurations that New refuses.
func TestConfigIsValidated(t *testing.T) {
	for _, cfg := range []kvsource.Config{{}, {Endpoint: "tcp://*:5557"}, {Endpoint: "http://a"}, {Endpoint: "tcp://a:1", Replay: "x"}, {Endpoint: "ipc:///a", Rank: -1}} {
		if _, err := kvsource.New(cfg); err == nil || !strings.HasPrefix(err.Error(), "configure event source: ") {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
}

// payloads are n messages, each storing one block.
func payloads(n int) [][]byte {
	var all [][]byte
	for i := range n {
		all = append(all, kvevent.AppendVLLM(nil, float64(1000+i), 0, []kvevent.Raw{{Hashes: []kvevent.EngineHash{kvevent.EngineHash(i)}, Tokens: []uint32{1, 2}, BlockSize: 2}}))
	}
	return all
}

// TestSourceReportsThatItHasCaughtUp: after each replay that was answered to its end the source reports
// the engine's next number. Without a replay socket it never does.
func TestSourceReportsThatItHasCaughtUp(t *testing.T) {
	sim, _ := startSim(t, anyPort, anyPort, nil)
	events := forward(t, sim.EventsEndpoint())
	l := listen(t, events.endpoint(), sim.ReplayEndpoint(), nil)
	blind := listen(t, sim.EventsEndpoint(), "", nil)
	reports := func(next uint64) func() bool {
		return func() (ok bool) {
			l.read(func() { ok = len(l.caughtUp) > 0 && l.caughtUp[len(l.caughtUp)-1] == next })
			return ok
		}
	}

	testkit.Eventually(t, "an idle engine's next number is 0", reports(0))
	ask(t, sim, "hello engine")
	testkit.Eventually(t, "the next number is 1", reports(1))

	before := 0
	l.read(func() { before = len(l.caughtUp) })
	events.cut()
	testkit.Eventually(t, "it is connected again", func() bool { return l.Stats().Connects >= 2 })
	testkit.Eventually(t, "the next number is reported again", func() (again bool) {
		l.read(func() { again = len(l.caughtUp) > before })
		return again
	})

	// A source is connected before the engine has read its subscription, and without a replay socket the messages
	// in between are lost. So the engine publishes until the source has received one.
	testkit.Eventually(t, "messages arrive without a replay socket too", func() bool {
		ask(t, sim, fmt.Sprintf("question %d", time.Now().UnixNano()))
		return blind.Stats().Received > 0
	})
	blind.read(func() {
		if len(blind.caughtUp) != 0 {
			t.Errorf("without a replay socket it reports %d", blind.caughtUp)
		}
	})
}
