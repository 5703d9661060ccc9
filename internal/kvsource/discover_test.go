package kvsource_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/go-zeromq/zmq4"

	"github.com/stator-project/stator/internal/kv/kvevent"
	"github.com/stator-project/stator/internal/kvsource"
	"github.com/stator-project/stator/test/testkit"
)

// captured is vLLM 0.32.0's answer.
const captured = `{"0":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:25557","replay_endpoint":"tcp://*:25558","buffer_steps":10000,"hwm":100000,"max_queue_size":100000,"topic":"kv-events"}}`

// TestDiscover covers answers of several engines, and answers that are wrong.
func TestDiscover(t *testing.T) {
	entry := func(endpoint, more string) string {
		return fmt.Sprintf(`{"publisher":"zmq","endpoint":%q%s}`, endpoint, more)
	}
	tests := []struct {
		name   string
		status int
		body   string
		want   []kvsource.Socket
		err    string
	}{
		{name: "captured", body: captured, want: []kvsource.Socket{{Endpoint: "tcp://127.0.0.1:25557", Replay: "tcp://127.0.0.1:25558", Topic: "kv-events"}}},
		{name: "ranks with ports of their own", body: `{"1":` + entry("tcp://*:6001", "") + `,"0":` + entry("tcp://[::]:6000", `,"replay_endpoint":null`) + `}`,
			want: []kvsource.Socket{{Endpoint: "tcp://127.0.0.1:6000"}, {Rank: 1, Endpoint: "tcp://127.0.0.1:6001"}}},
		{name: "ranks with the configured port", body: `{"1":` + entry("tcp://*:6000", `,"replay_endpoint":"tcp://*:7000"`) + `,"0":` + entry("tcp://*:6000", `,"replay_endpoint":"tcp://*:7000"`) + `}`,
			want: []kvsource.Socket{{Endpoint: "tcp://127.0.0.1:6000", Replay: "tcp://127.0.0.1:7000"}, {Rank: 1, Endpoint: "tcp://127.0.0.1:6001", Replay: "tcp://127.0.0.1:7001"}}},
		{name: "a list", body: `[{"data_parallel_rank":3,"endpoint":"tcp://10.0.0.1:5557","replay_endpoint":null,"topic":""}]`,
			want: []kvsource.Socket{{Rank: 3, Endpoint: "tcp://10.0.0.1:5557", NamesHost: true}}},
		{name: "a file", body: `{"0":` + entry("ipc:///run/kv.sock", "") + `}`, want: []kvsource.Socket{{Endpoint: "ipc:///run/kv.sock"}}},
		{name: "no events", body: `{"0":{"enable_kv_cache_events":false,"publisher":"null","endpoint":"tcp://*:5557"}}`},
		{name: "nothing", body: `{}`},
		{name: "an older engine", status: 404, err: "discover event sockets: the engine does not report its event sockets"},
		{name: "a loading engine", status: 503, err: "discover event sockets: status 503"},
		{name: "not JSON", body: "<html>", err: "discover event sockets: read answer: invalid character '<' looking for beginning of value"},
		{name: "no rank", body: `{"a":{}}`, err: `discover event sockets: read answer: "a" is not a rank`},
		{name: "a rank out of range", body: `{"-1":` + entry("tcp://*:1", "") + `}`, err: "discover event sockets: rank -1 is out of range"},
		{name: "no port", body: `{"0":` + entry("tcp://*", "") + `}`, err: `discover event sockets: rank 0: "tcp://*" has no port`},
		{name: "any port", body: `{"0":` + entry("tcp://*:0", "") + `}`, err: `discover event sockets: rank 0: "tcp://*:0" has no port that can be connected to`},
		{name: "inside the process", body: `{"0":` + entry("inproc://x", "") + `}`,
			err: `discover event sockets: rank 0: "inproc://x" is not an endpoint such as tcp://10.0.0.1:5557 or ipc:///run/engine.sock`},
		{name: "too long", body: strings.Repeat(" ", 1<<20+1), err: "discover event sockets: an answer of more than 1048576 bytes"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/kv_event_sources" {
					t.Errorf("asked for %s", r.URL.Path)
				}
				if tt.status != 0 {
					w.WriteHeader(tt.status)
				}
				fmt.Fprint(w, tt.body)
			}))
			defer engine.Close()
			found, err := kvsource.Discover(t.Context(), engine.Client(), engine.URL)
			if text := fmt.Sprint(err); err != nil && text != tt.err || err == nil && tt.err != "" {
				t.Errorf("error %v, want %s", err, tt.err)
			}
			if !reflect.DeepEqual(found, tt.want) {
				t.Errorf("found %+v, want %+v", found, tt.want)
			}
			if tt.status == 404 && !errors.Is(err, kvsource.ErrNoDiscovery) {
				t.Errorf("%v", err)
			}
		})
	}
}

// TestDiscoveredSocketsCanBeRead: a source can read the sockets that a simulated engine reports.
func TestDiscoveredSocketsCanBeRead(t *testing.T) {
	sim, _ := startSim(t, anyPort, anyPort, nil)
	found, err := kvsource.Discover(t.Context(), http.DefaultClient, "http://"+sim.Addr())
	if err != nil || len(found) != 1 {
		t.Fatalf("%+v %v", found, err)
	}
	l := listen(t, found[0].Endpoint, found[0].Replay, func(c *kvsource.Config, _ *consumer) { c.Topic = found[0].Topic })
	ask(t, sim, "hello engine")
	testkit.Eventually(t, "the message is here", l.reached(1))
}

// FuzzDiscover: whatever an engine answers, a source can be made for each socket found.
func FuzzDiscover(f *testing.F) {
	f.Add(captured)
	f.Add(`[{"data_parallel_rank":3,"endpoint":"tcp://10.0.0.1:5557"},{"endpoint":"ipc://x"}]`)
	f.Add(`{"1":{"endpoint":"tcp://*:65535"},"0":{"endpoint":"tcp://*:65535"}}`)
	f.Fuzz(func(t *testing.T, body string) {
		client := &http.Client{Transport: answer(body)}
		found, err := kvsource.Discover(t.Context(), client, "http://engine:8000")
		if err != nil && found != nil {
			t.Fatalf("%v with %+v", err, found)
		}
		for i, s := range found {
			if _, err := kvsource.New(kvsource.Config{Endpoint: s.Endpoint, Replay: s.Replay, Topic: s.Topic, Rank: s.Rank}); err != nil {
				t.Fatalf("found %+v: %v", s, err)
			}
			if i > 0 && found[i-1].Rank >= s.Rank {
				t.Fatalf("ranks out of order: %+v", found)
			}
		}
	})
}

type answer string

func (a answer) RoundTrip(*http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	w.WriteString(string(a))
	return w.Result(), nil
}

// connecting is a PUB socket that connects, as vLLM's does if its endpoint names a host.
type connecting struct {
	t      *testing.T
	socket zmq4.Socket
	replay *replayOnly
	sent   [][]byte
}

func connect(t *testing.T, endpoint string, replay *replayOnly) *connecting {
	t.Helper()
	c := &connecting{t: t, socket: zmq4.NewPub(t.Context()), replay: replay}
	replay.set(nil)
	if err := c.socket.Dial(endpoint); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.socket.Close() })
	return c
}

func (c *connecting) publish(seconds float64) {
	c.t.Helper()
	seq := len(c.sent)
	c.sent = append(c.sent, kvevent.AppendVLLM(nil, seconds, 0, []kvevent.Raw{{
		Hashes: []kvevent.EngineHash{kvevent.EngineHash(seq)}, Tokens: []uint32{1, 2, 3, uint32(seq)}, BlockSize: 4,
	}}))
	c.replay.set(c.sent)
	testkit.Eventually(c.t, "it is subscribed to", func() bool { return len(c.socket.(zmq4.Topics).Topics()) > 0 })
	m := zmq4.NewMsgFrom([]byte("kv"), binary.BigEndian.AppendUint64(nil, uint64(seq)), c.sent[seq])
	if err := c.socket.SendMulti(m); err != nil {
		c.t.Fatal(err)
	}
}

// TestBoundSourceReadsConnectingEngine: a source that binds reads from an engine that connects, and from
// the next one.
func TestBoundSourceReadsConnectingEngine(t *testing.T) {
	replay := newReplayOnly(t)
	endpoint := "tcp://" + testkit.Address(t)
	ups := make(chan bool, 100)
	l := listen(t, strings.Replace(endpoint, "127.0.0.1", "*", 1), replay.endpoint, func(c *kvsource.Config, l *consumer) {
		c.Bind, c.Probe = true, -1
		l.ups = ups
	})
	first := connect(t, endpoint, replay)
	testkit.Eventually(t, "the engine has connected", func() bool { return l.Stats().Connects == 1 })
	for i := range 5 {
		first.publish(float64(100 + i))
	}
	testkit.Eventually(t, "all 5 are here", l.reached(5))
	// The next process connects before the connection of the first is closed.
	second := connect(t, endpoint, replay)
	testkit.Eventually(t, "the next has connected", func() bool { return l.Stats().Connects == 2 })
	for i := range 3 {
		second.publish(float64(200 + i))
	}
	testkit.Eventually(t, "its 3 are here", l.reached(3))
	l.read(func() {
		if l.restarts != 1 || len(l.accepted) != 8 {
			t.Errorf("restarts %d, accepted %v; %v %s", l.restarts, l.accepted, l.Stats(), l.Stats().LastError)
		}
	})
	for _, want := range []bool{true, false, true} {
		if up := <-ups; up != want {
			t.Errorf("connected: %v, want %v", up, want)
		}
	}
}

// TestBindIsRetried: a port in use is tried again, and a peer that does not greet is dropped for the
// next one.
func TestBindIsRetried(t *testing.T) {
	sim, stop := startSim(t, anyPort, anyPort, nil)
	taken := sim.EventsEndpoint()
	replay := newReplayOnly(t)
	l := listen(t, taken, replay.endpoint, func(c *kvsource.Config, _ *consumer) { c.Bind = true })
	testkit.Eventually(t, "it cannot bind", func() bool { return strings.Contains(l.Stats().LastError, "bind: ") })
	stop()
	testkit.Eventually(t, "a mute peer is there", func() bool {
		mute, err := net.Dial("tcp", strings.TrimPrefix(taken, "tcp://"))
		if err == nil {
			t.Cleanup(func() { mute.Close() })
		}
		return err == nil
	})
	engine := connect(t, taken, replay)
	testkit.Eventually(t, "the engine has connected", func() bool { return l.Stats().Connects == 1 })
	engine.publish(1)
	testkit.Eventually(t, "it has spoken", l.reached(1))
}

// TestBindConfigIsValidated lists configurations that New refuses.
func TestBindConfigIsValidated(t *testing.T) {
	for _, tt := range []struct {
		cfg  kvsource.Config
		want string
	}{
		{kvsource.Config{Endpoint: "ipc://x", Bind: true}, `"ipc://x" is not an endpoint to bind such as tcp://*:5557`},
		{kvsource.Config{Endpoint: "tcp://*", Bind: true}, `"tcp://*" is not an endpoint to bind such as tcp://*:5557`},
		{kvsource.Config{Endpoint: "tcp://*:1"}, `"tcp://*:1" is an address to bind: name the engine's host instead of *`},
		{kvsource.Config{Endpoint: "http://a:1/kv_cache_events"}, "in dialect vllm"},
		{kvsource.Config{Endpoint: "http://a:1/kv_cache_events", Dialect: kvevent.TRTLLM, Replay: "tcp://a:1"}, "without a replay socket"},
		{kvsource.Config{Endpoint: "tcp://a:1", Dialect: kvevent.TRTLLM}, "in dialect trtllm: only TensorRT-LLM is polled over HTTP"},
	} {
		if _, err := kvsource.New(tt.cfg); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: %v, want %s", tt.cfg, err, tt.want)
		}
	}
}

// TestDynamoFrames reads frames that Dynamo's runtime has sent on its event plane for rank 1.
func TestDynamoFrames(t *testing.T) {
	endpoint := "tcp://" + testkit.Address(t)
	l := listen(t, endpoint, "", func(c *kvsource.Config, _ *consumer) {
		c.Bind, c.Dialect, c.Rank = true, kvevent.Dynamo, 1
	})
	socket := zmq4.NewPub(t.Context())
	defer socket.Close()
	testkit.Eventually(t, "it can connect", func() bool { return socket.Dial(endpoint) == nil })
	testkit.Eventually(t, "it is subscribed to", func() bool { return len(socket.(zmq4.Topics).Topics()) > 0 })
	raw, err := os.ReadFile("../kv/kvevent/testdata/made/dynamo-frames.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(raw) {
		var m struct {
			Frames, Seq int
			Payload     []byte `json:"payload_b64"`
		}
		if err := json.Unmarshal(line, &m); err != nil {
			t.Fatal(err)
		}
		if m.Frames != 4 {
			continue
		}
		seq := binary.BigEndian.AppendUint64(nil, uint64(m.Seq))
		if err := socket.SendMulti(zmq4.NewMsgFrom([]byte("kv-events"), make([]byte, 8), seq, m.Payload)); err != nil {
			t.Fatal(err)
		}
	}
	testkit.Eventually(t, "all 4 are here", l.reached(4))
	l.read(func() {
		if l.stored != 4 || l.unknown != 0 || len(l.ranks) != 1 || !l.ranks[1] {
			t.Errorf("stored %d, unknown %d, ranks %v", l.stored, l.unknown, l.ranks)
		}
	})
}
