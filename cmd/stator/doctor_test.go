package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/kv/kvevent"
	"github.com/stator-project/stator/internal/kvsource"
)

// wellFleet is a fleet that has nothing: two engines of one model, read from their sockets.
func wellFleet() *observation {
	seq := func(n uint64) *uint64 { return &n }
	o := &observation{
		busURL: "nats://bus:4222",
		models: []modelSeen{{name: "m", names: []string{"m", "alias"}, path: "models/m", blockSize: 16, contextLength: 4096,
			tokens: [][]uint32{{1, 2}, {3}, {4}, {5}, {6, 7, 8}}}},
	}
	for _, name := range []string{"a", "b"} {
		at := kvsource.Found{Endpoint: "tcp://" + name + ":5557", Replay: "tcp://" + name + ":5558"}
		o.workers = append(o.workers, workerSeen{
			name: name, model: "m", address: name + ":8000", kind: "vllm", fromFile: true, known: true, ranks: 1, kvEvents: at.Endpoint, kvReplay: at.Replay,
			engine: engineSeen{
				served: []servedModel{{"m", 4096}}, blockSize: 16, hashAlgo: "sha256", queries: 50_000, hits: 20_000,
				tokens: [][]uint32{{1, 2}, {3}, {4}, {5}, {6, 7, 8}}, sources: []kvsource.Found{at},
			},
			sockets: []socketSeen{{
				endpoint: at.Endpoint, hadReplay: true, messages: 100, blockSize: 16, stored: 500,
				roots: map[root]kvevent.Engine{{1, 16}: 11}, lastSaid: time.Unix(1000, 0), heard: time.Unix(1060, 0),
			}},
		})
		o.router.ranks = append(o.router.ranks, fleetRank{Worker: name, Model: "m", State: "ready"})
		o.router.before = append(o.router.before, feedRank{Worker: name, State: "exact", Seq: seq(90)})
		o.router.after = append(o.router.after, feedRank{Worker: name, State: "exact", Seq: seq(99)})
	}
	o.router.earlier = samples{`stator_feed_ignored_total{reason="wrong_epoch"}`: 7}
	o.router.later = samples{
		`stator_feed_ignored_total{reason="wrong_epoch"}`: 7, "stator_route_prompt_tokens_total": 100_000, "stator_route_cached_tokens_total": 38_000,
	}
	return o
}

// Each sickness of a fleet that is well otherwise is found by its check, and by no other.
func TestChecks(t *testing.T) {
	broken := errors.New("broken")
	tests := []struct {
		check string
		make  func(o *observation)
		want  []string // in the one finding
	}{
		{"", func(*observation) {}, nil},
		{"router", func(o *observation) { o.router = routerSeen{address: "r:1", err: broken} }, []string{"router: its admin port r:1 does not answer: broken", "--admin"}},
		{"router", func(o *observation) { o.router.ready = errors.New("model m has no worker") }, []string{"not ready: model m has no worker"}},
		{"bus", func(o *observation) { o.busErr = broken }, []string{"nats://bus:4222 cannot be reached", "stator bus"}},
		{"file", func(o *observation) { o.workers[0].known = false }, []string{"worker a: the file names it"}},
		{"model", func(o *observation) { o.models[0].err, o.models[0].tokens, o.models[0].contextLength = broken, nil, 0 }, []string{"model m: broken", "models[].path"}},
		{"engine", func(o *observation) { o.workers[1].engine = engineSeen{err: broken} }, []string{"worker b: its engine at b:8000 does not answer"}},
		{"served-name", func(o *observation) { o.workers[0].engine.served = []servedModel{{"other", 0}} }, []string{"worker a: it serves other and not m", "--served-model-name m"}},
		{"", func(o *observation) { o.workers[0].engine.served = []servedModel{{"x", 1}, {"alias", 4096}} }, nil},
		{"tokenizer", func(o *observation) { o.workers[0].engine.tokens[2] = []uint32{4, 9} }, []string{"is 2 tokens to the engine and 1 to us, different from number 1 on", "ours: models/m"}},
		{"tokenizer", func(o *observation) { o.workers[0].engine.tokens[4] = []uint32{6, 9, 8} }, []string{"a chat is 3 tokens", "chat template"}},
		{"", func(o *observation) { o.workers[0].engine.tokens[4] = nil }, nil},
		{"context-length", func(o *observation) { o.workers[0].engine.served[0].MaxLen = 2048 }, []string{"its max_model_len is 2048, ours of model m is 4096", "refused by the engine"}},
		{"context-length", func(o *observation) { o.workers[0].engine.served[0].MaxLen = 8192 }, []string{"we refuse prompts"}},
		{"block-size", func(o *observation) { o.workers[0].engine.blockSize, o.workers[0].sockets[0].blockSize = 32, 0 },
			[]string{"its blocks have 32 tokens, as its metrics say, and prompts of model m are cut by 16", "set models[].blockSize to 32"}},
		{"block-size", func(o *observation) { o.workers[0].sockets[0].blockSize = 64 }, []string{"64 tokens, as its events say"}},
		{"prefix-caching", func(o *observation) { o.workers[0].engine.cachingOff = true }, []string{"--enable-prefix-caching"}},
		{"event-socket", silent(func(w *workerSeen) { w.engine.sources = nil }), []string{"tcp://a:5557 of rank 0 cannot be connected to: refused", "the engine publishes none: start it with --kv-events-config"}},
		{"event-socket", silent(func(w *workerSeen) { w.engine.sources[0].Endpoint = "tcp://a:6000" }), []string{"the engine names tcp://a:6000: set the worker's kvEvents"}},
		{"event-socket", silent(func(w *workerSeen) { w.engine.sources[0].NamesHost = true }), []string{"the engine connects there instead of binding"}},
		{"event-socket", silent(func(*workerSeen) {}), []string{"a firewall"}},
		{"event-socket", silent(func(w *workerSeen) { w.engine.sources, w.engine.sourcesErr = nil, broken }), []string{"With a host instead of * the engine connects"}},
		{"", func(o *observation) { o.workers[0].sockets[0].err = broken }, nil}, // the router hears it: an agent is nearer
		{"events-unused", func(o *observation) { o.workers[0].kvEvents, o.workers[0].sockets = "", nil }, []string{`set its kvEvents to "tcp://a:5557" and kvReplay to "tcp://a:5558"`}},
		{"events-arrive", func(o *observation) { o.router.after[0].State = "none" }, []string{"published 100 messages that we heard, and none has reached the router"}},
		{"events-arrive", func(o *observation) {
			o.router.after[0].State = "none"
			o.workers[0].sockets[0] = socketSeen{endpoint: "tcp://a:5557"}
		}, []string{"has computed prompts (50000 tokens) and published nothing", "set kvReplay"}},
		{"", func(o *observation) {
			o.router.after[0].State = "none"
			o.workers[0].sockets[0].messages, o.workers[0].engine.queries, o.workers[0].engine.hits = 0, 0, 0
		}, nil}, // it is idle
		{"events-understood", func(o *observation) { o.workers[0].sockets[0].malformed, o.workers[0].sockets[0].said = 3, "what" }, []string{"3 of 100 messages of rank 0 cannot be read: what"}},
		{"events-understood", func(o *observation) { o.workers[0].sockets[0].unknown = 2 }, []string{"2 events of rank 0 are of a kind we do not know"}},
		{"event-content", func(o *observation) { o.workers[0].sockets[0].noTokens = 400 }, []string{"400 of 500 blocks that rank 0 stored came without their tokens"}},
		{"knowledge", func(o *observation) { o.router.after[0].State, o.router.after[0].GivenUp = "stale", 2 }, []string{"2 times events were lost", "kvReplay"}},
		{"knowledge", func(o *observation) { o.router.after[0].State = "stale" }, []string{"its events have stopped"}},
		{"knowledge", func(o *observation) {
			o.router.watched = 3 * time.Second
			o.router.before[0].State, o.router.after[0].State, o.router.after[0].Seq = "syncing", "syncing", o.router.before[0].Seq
		}, []string{"rank 0 has waited 3s for events that are missing"}},
		{"", func(o *observation) { o.router.before[0].State, o.router.after[0].State = "syncing", "syncing" }, nil}, // it gets on
		{"epoch", func(o *observation) { o.router.later[`stator_feed_ignored_total{reason="wrong_epoch"}`] = 9 }, []string{"of an engine process that the fleet does not have: 2 batches"}},
		{"epoch", func(o *observation) { o.router.later[`stator_feed_ignored_total{reason="unknown_worker"}`] = 1 }, []string{"data-parallel size"}},
		{"clock", func(o *observation) { o.router.ahead = -time.Hour }, []string{"router: its clock is 1h0m0s behind ours"}},
		{"clock", func(o *observation) { o.workers[0].engine.ahead = 5 * time.Second }, []string{"worker a: its clock is 5s ahead of ours"}},
		{"clock", func(o *observation) { o.workers[0].sockets[0].lastSaid = time.Unix(1090, 0) }, []string{"30s ahead"}},
		{"hit-rate", func(o *observation) { o.router.later["stator_route_cached_tokens_total"] = 90_000 }, []string{"it took 90 % of prompt tokens for cached, engines found 40 %"}},
		{"hit-rate", func(o *observation) { o.router.later["stator_route_cached_tokens_total"] = 100 }, []string{"hit by chance"}},
		{"drift", func(o *observation) { o.router.later[`stator_feed_drift_ratio{worker="a"}`] = 0.5 }, []string{"50 % of its prompt tokens were promised"}},
		{"drift", func(o *observation) { o.router.later[`stator_feed_drift_ratio{worker="a"}`] = -0.3 }, []string{"30 % of its prompt tokens were cached and not promised"}},
		{"drift", func(o *observation) { o.router.later[`stator_feed_drift_resyncs_total{worker="b"}`] = 2 }, []string{"worker b: what was known of its cache turned out wrong 2 times"}},
		{"engine-hashes", func(o *observation) { o.workers[1].engine.hashAlgo = "sha256_cbor" }, []string{"worker b: it hashes by sha256_cbor"}},
		{"engine-hashes", func(o *observation) {
			o.workers[0].engine.hashAlgo, o.workers[1].engine.hashAlgo = "xxhash", "xxhash"
		}, []string{"worker b: it hashes by xxhash", "seeded at random"}},
		{"engine-hashes", func(o *observation) { o.workers[1].sockets[0].roots[root{1, 16}] = 12 }, []string{"worker b: it hashes the same block differently than a (by sha256)", "PYTHONHASHSEED"}},
		{"", func(o *observation) { o.workers[1].sockets[0].roots = map[root]kvevent.Engine{{2, 16}: 12} }, nil},
	}
	tried := map[string]bool{}
	for i, tt := range tests {
		t.Run(fmt.Sprintf("%d-%s", i, tt.check), func(t *testing.T) {
			o := wellFleet()
			tt.make(o)
			found := examine(o).Findings
			if tt.check == "" {
				if len(found) != 0 {
					t.Fatalf("found %+v", found)
				}
				return
			}
			if len(found) != 1 || found[0].Check != tt.check || found[0].Why == "" {
				t.Fatalf("found %+v, want one of %s", found, tt.check)
			}
			text := found[0].Subject + ": " + found[0].What + "\n" + found[0].Why + "\n" + found[0].Remedy
			for _, want := range tt.want {
				if !strings.Contains(text, want) {
					t.Errorf("%s\nhas no %q", text, want)
				}
			}
			if strings.Count(text, "\n") != 2 {
				t.Errorf("not a line each:\n%s", text)
			}
		})
		tried[tt.check] = true
	}
	for _, c := range checks {
		if !tried[c.name] {
			t.Errorf("check %s is not tried", c.name)
		}
	}
}

// silent is a fleet whose worker a has a socket that nobody can connect to.
func silent(more func(w *workerSeen)) func(o *observation) {
	return func(o *observation) {
		o.workers[0].sockets[0] = socketSeen{endpoint: "tcp://a:5557", err: errors.New("refused")}
		o.router.before[0].State, o.router.after[0].State = "none", "none"
		more(&o.workers[0])
	}
}

func TestSamples(t *testing.T) {
	s := samples{`x_info{block_size="16",a="b"}`: 1, `x_info_total{a="q"}`: 2, `n{e="0"}`: 3, `n{e="1"}`: 4, "plain": 5}
	if s.label("x_info", "block_size") != "16" || s.label("x_info", "a") != "b" || s.label("x_info", "lock_size") != "" || s.label("y", "a") != "" {
		t.Error("labels are wrong")
	}
	if s.sum("n") != 7 || s.sum("plain") != 5 || s.sum("x") != 0 {
		t.Error("sums are wrong")
	}
}

func TestClockAhead(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	date := at.Format("Mon, 02 Jan 2006 15:04:05") + " GMT"
	for _, tt := range []struct {
		before, after time.Time
		want          time.Duration
	}{
		{at.Add(300 * time.Millisecond), at.Add(400 * time.Millisecond), 0}, // within its second
		{at.Add(-5 * time.Second), at.Add(-4 * time.Second), 4 * time.Second},
		{at.Add(9 * time.Second), at.Add(10 * time.Second), -8 * time.Second},
	} {
		if got := clockAhead(date, tt.before, tt.after); got != tt.want {
			t.Errorf("%v, want %v", got, tt.want)
		}
	}
	if clockAhead("no date", at, at) != 0 {
		t.Error("a clock without a date")
	}
}
