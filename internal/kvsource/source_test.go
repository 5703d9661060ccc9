package kvsource_test

import (
	"encoding/binary"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/kv/kvevent"
	"github.com/stator-project/stator/internal/kvsource"
	"github.com/stator-project/stator/test/loopback"
	"github.com/stator-project/stator/workeragent/engine/enginesim"
)

const anyPort = "tcp://127.0.0.1:0"

// A source that comes late reads what was said before and goes on live, each message once and
// in order, also those said while it replays.
func TestFromTheBeginning(t *testing.T) {
	sim, _ := startSim(t, anyPort, anyPort, nil)
	for i := range 20 {
		ask(t, sim, fmt.Sprintf("%d is a prompt", i))
	}
	l := listen(t, sim.EventsEndpoint(), sim.ReplayEndpoint(), func(c *kvsource.Config, _ *listener) { c.Rank = 3 })
	for i := range 40 {
		ask(t, sim, fmt.Sprintf("+%d is another prompt", i))
	}
	until(t, "all 60 are here", l.reached(60))
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
	if s := l.Stats(); !s.Connected || s.LastSeq != 59 || s.Connects != 1 || s.Restarts != 0 || s.Malformed != 0 || s.Replayed < 20 {
		t.Errorf("%v", s)
	}
}

// The source may be there before the engine.
func TestBeforeTheEngine(t *testing.T) {
	events, replay := freePort(t), freePort(t)
	l := listen(t, events, replay, nil)
	until(t, "it has tried", func() bool { return l.Stats().LastError != "" })
	sim, _ := startSim(t, events, replay, nil)
	ask(t, sim, "hello engine")
	until(t, "the message is here", l.reached(1))
}

// Connections that break lose nothing, and are not taken for a restart.
func TestConnectionsBreak(t *testing.T) {
	sim, _ := startSim(t, anyPort, anyPort, nil)
	events, replay := forward(t, sim.EventsEndpoint()), forward(t, sim.ReplayEndpoint())
	ups := make(chan bool, 100)
	l := listen(t, events.endpoint(), replay.endpoint(), func(c *kvsource.Config, _ *listener) { c.Connected = func(up bool) { ups <- up } })
	connects := uint64(1)
	for i := range 60 {
		if i%20 == 10 {
			until(t, "it is connected", func() bool { return l.Stats().Connects == connects })
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
	until(t, "all 60 are here", l.reached(60))
	until(t, "it has connected three times", func() bool { return l.Stats().Connects == 3 })
	if s := l.Stats(); s.Restarts != 0 {
		t.Errorf("%v", s)
	}
	if l.restarts != 0 {
		t.Errorf("%d restarts", l.restarts)
	}
	for _, want := range []bool{true, false, true, false, true} {
		if up := <-ups; up != want {
			t.Errorf("the connection is said to be up: %v, want %v", up, want)
		}
	}
}

// A new engine process counts from 0 again. Whether it is behind the old one or past it when
// the source is back, everything it said is handed on from its first message.
func TestEngineRestarts(t *testing.T) {
	for name, messages := range map[string]int{"behind": 2, "past": 20} {
		t.Run(name, func(t *testing.T) {
			events, replay := freePort(t), freePort(t)
			sim, stop := startSim(t, events, replay, nil)
			eventsNet, replayNet := forward(t, events), forward(t, replay)
			l := listen(t, eventsNet.endpoint(), replayNet.endpoint(), nil)
			for i := range 8 {
				ask(t, sim, fmt.Sprintf("%d of the first life", i))
			}
			until(t, "the first life is here", l.reached(8))

			// The network comes back only when the new process has said much already.
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

			until(t, "the second life is here", l.reached(uint64(messages)))
			l.read(func() {
				if l.restarts != 1 || len(l.accepted) != 8+messages || l.accepted[8] != 0 {
					t.Errorf("%d restarts, accepted %d", l.restarts, l.accepted)
				}
			})
			if s := l.Stats(); s.Restarts != 1 {
				t.Errorf("%v", s)
			}
		})
	}
}

// The last messages before silence may be lost, and nothing shows it: the source asks.
func TestSilentTail(t *testing.T) {
	replay := newReplayOnly(t)
	sim, _ := startSim(t, anyPort, "", nil)
	l := listen(t, sim.EventsEndpoint(), replay.endpoint, nil)
	until(t, "it is connected", func() bool { return l.Stats().Connected })
	replay.set(payloads(3))
	until(t, "the messages nobody sent are here", l.reached(3))
	replay.set(payloads(5))
	until(t, "and the later ones", l.reached(5))
	if l.restarts != 0 {
		t.Errorf("%d restarts", l.restarts)
	}
}

// What lies beyond the engine's buffer is gone. The source asks until apply gives up, and then
// begins with the oldest message there is.
func TestBufferRolledOver(t *testing.T) {
	sim, _ := startSim(t, anyPort, anyPort, func(c *enginesim.Config) { c.ReplayBuffer = 10 })
	for i := range 25 {
		ask(t, sim, fmt.Sprintf("%d is a prompt", i))
	}
	l := listen(t, sim.EventsEndpoint(), sim.ReplayEndpoint(), func(_ *kvsource.Config, l *listener) { l.giveUp = time.Now().Add(100 * time.Millisecond) })
	until(t, "the end is here", l.reached(25))
	l.read(func() {
		if len(l.accepted) != 10 || l.accepted[0] != 15 || l.gaps == 0 {
			t.Errorf("gaps %d, accepted %d", l.gaps, l.accepted)
		}
	})
}

// While apply is slow, only so many messages wait here; the engine keeps the rest, drops
// some, and they are replayed.
func TestSlowApply(t *testing.T) {
	sim, _ := startSim(t, anyPort, anyPort, func(c *enginesim.Config) { c.SubscriberQueue = 4 })
	block := make(chan struct{})
	l := listen(t, sim.EventsEndpoint(), sim.ReplayEndpoint(), func(c *kvsource.Config, l *listener) { c.Buffer = 4; l.block = block })
	until(t, "it is connected", func() bool { return l.Stats().Connected })
	for i := range 100 {
		ask(t, sim, fmt.Sprintf("%d %s", i, strings.Repeat("x", 20)))
		if w := l.Stats().Waiting; w > 4 {
			t.Fatalf("%d messages wait", w)
		}
	}
	close(block)
	until(t, "all 100 are here", l.reached(100))
	l.read(func() {
		if len(l.accepted) != 100 || l.restarts != 0 {
			t.Errorf("accepted %d, restarts %d", l.accepted, l.restarts)
		}
	})
}

// A message that cannot be understood does not stop those behind it, and is seen.
func TestMalformed(t *testing.T) {
	replay := newReplayOnly(t)
	sim, _ := startSim(t, anyPort, "", nil)
	all := payloads(3)
	all[1] = []byte("no msgpack")
	replay.set(all)
	l := listen(t, sim.EventsEndpoint(), replay.endpoint, nil)
	until(t, "all are here", l.reached(3))
	if s := l.Stats(); s.Malformed != 1 || !strings.Contains(s.LastError, "decode vllm events") || l.unknown != 1 {
		t.Errorf("%v, %s, unknown %d", s, s.LastError, l.unknown)
	}
}

// A peer that announces a frame of 4 exabytes is refused before memory is set aside for it.
func TestOversized(t *testing.T) {
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
	until(t, "it is refused", func() bool { return strings.Contains(l.Stats().LastError, "a message of more than") })
	hostile.Close()
	<-done
}

func TestConfig(t *testing.T) {
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
		all = append(all, kvevent.AppendVLLM(nil, float64(1000+i), 0, []kvevent.Raw{{Hashes: []kvevent.Engine{kvevent.Engine(i)}, Tokens: []uint32{1, 2}, BlockSize: 2}}))
	}
	return all
}

func freePort(t *testing.T) string {
	t.Helper()
	address, err := loopback.Address()
	if err != nil {
		t.Fatal(err)
	}
	return "tcp://" + address
}
