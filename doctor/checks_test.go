package doctor

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/engines"
	"github.com/stator-project/stator/internal/enginetls"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/kvevent"
	"github.com/stator-project/stator/internal/kvsource"
	"github.com/stator-project/stator/internal/metric"
)

// healthyFleet returns a fleet without a finding: two engines of one model, whose sockets are read.
func healthyFleet() *observation {
	seq := func(n uint64) *uint64 { return &n }
	o := &observation{
		busURL: "nats://me:secret@bus:4222",
		models: []modelSeen{{name: "m", names: []string{"m", "alias"}, path: "models/m", blockSize: 16, contextLength: 4096, lengthIsSet: true,
			tokens: [][]uint32{{1, 2}, {3}, {4}, {5}, {6, 7, 8}}}},
	}
	for _, name := range []string{"a", "b"} {
		at := kvsource.Socket{Endpoint: "tcp://" + name + ":5557", Replay: "tcp://" + name + ":5558"}
		o.workers = append(o.workers, workerSeen{
			name: name, model: "m", address: name + ":8000", kind: engines.VLLM, fromFile: true, inRouter: true, ranks: 1, kvEvents: at.Endpoint, kvReplay: at.Replay,
			engine: engineSeen{
				served: []servedModel{{ID: "m", MaxLen: 4096}}, blockSize: 16, hashAlgo: "sha256", queries: 50_000, hits: 20_000,
				tokens: [][]uint32{{1, 2}, {3}, {4}, {5}, {6, 7, 8}}, sources: []kvsource.Socket{at},
			},
			sockets: []socketSeen{{
				endpoint: at.Endpoint, hadReplay: true, messages: 100, blockSize: 16, stored: 500,
				roots: map[root]kvevent.EngineHash{{1, 16}: 11}, sentAt: time.Unix(1000, 0), receivedAt: time.Unix(1060, 0),
			}},
		})
		o.router.fleet.Ranks = append(o.router.fleet.Ranks, fleetRank{Worker: name, Model: "m", State: "ready"})
		o.router.before = append(o.router.before, cacheRank{Worker: name, State: "exact", Seq: seq(90)})
		o.router.after = append(o.router.after, cacheRank{Worker: name, State: "exact", Seq: seq(99)})
	}
	o.agents = []agentSeen{{address: "n:8084", engines: []agentEngine{{
		Worker: "a", State: "ready", StateSeconds: 3600, Failures: 5, SecondsSinceFailure: 3600,
		Ranks: []agentRank{{CacheState: "exact", Source: &agentSource{Connected: true, Unrecovered: 1}}},
	}}}}
	o.router.fleet.Index = &indexSeen{FleetBlocks: 1000, Room: 1000}
	o.router.metricsThen = metric.Samples{{Name: "stator_feed_ignored_total", Labels: map[string]string{"reason": "wrong_epoch"}, Value: 7}}
	o.router.metricsNow = metric.Samples{
		{Name: "stator_feed_ignored_total", Labels: map[string]string{"reason": "wrong_epoch"}, Value: 7},
		{Name: "stator_route_prompt_tokens_total", Value: 100_000},
		{Name: "stator_route_cached_tokens_total", Value: 38_000},
	}
	return o
}

// TestEachFaultHasOneFinding puts one fault into a healthy fleet: its check finds it, and no other does.
func TestEachFaultHasOneFinding(t *testing.T) {
	broken := errors.New("broken")
	tests := []struct {
		check   string
		breakIt func(o *observation)
		want    []string // in the one finding
	}{
		{"", func(*observation) {}, nil},
		{"router", func(o *observation) { o.router = routerSeen{address: "r:1", err: broken} }, []string{"router: the admin port r:1 does not answer: broken", "--admin-address"}},
		{"router", func(o *observation) { o.router.ready = errors.New("model m has no worker") }, []string{"not ready: model m has no worker"}},
		{"bus", func(o *observation) { o.busErr = broken }, []string{"nats://bus:4222 cannot be reached", "stator bus"}},
		{"bus-connection", func(o *observation) { setSample(o, 0, "stator_bus_connected", "connection", "data") },
			[]string{"router: its connection to the bus for data is down"}},
		{"bus-connection", func(o *observation) {
			o.agents[0].metrics = metric.Samples{{Name: "stator_bus_connected", Labels: map[string]string{"connection": "control"}}}
		}, []string{"agent n:8084: its connection to the bus for control is down"}},
		{"agent", func(o *observation) { o.agents[0] = agentSeen{address: "n:1", err: broken} }, []string{"agent n:1: its admin port does not show its engines: broken", "--agent"}},
		{"engine-restarts", func(o *observation) {
			e := &o.agents[0].engines[0]
			e.SecondsSinceFailure, e.LastError, e.LastLine = 4.6, "exit status 1", "out of memory\nnow"
		}, []string{"worker a: its engine failed 5 times, the last time 5s ago: exit status 1", `"out of memory\nnow"`}},
		{"engine-restarts", func(o *observation) {
			e := &o.agents[0].engines[0]
			e.SecondsSinceFailure, e.LastError, e.Remedy = 4.6, "exit status 1", "set launch[].python"
		}, []string{"its engine failed 5 times", "set launch[].python"}},
		{"agent-events", func(o *observation) { rankOfAgent(o).Source = nil }, []string{"worker a: its agent is not connected to the event socket of rank 0"}},
		{"agent-events", func(o *observation) { rankOfAgent(o).Source.Malformed = 2 }, []string{"cannot decode 2 messages of rank 0"}},
		{"agent-events", func(o *observation) { rankOfAgent(o).CacheState = "stale" }, []string{"lost events of rank 0 once, and no replay had them"}},
		{"agent-events", func(o *observation) {
			*rankOfAgent(o) = agentRank{CacheState: "stale", Reason: "interrupted", Source: &agentSource{Connected: true}}
		}, []string{"the cache of rank 0 is stale at its agent, because of: interrupted"}},
		{"", func(o *observation) { o.agents[0].engines[0].StateSeconds, rankOfAgent(o).Source = 2, nil }, nil}, // it has just become ready
		{"agent-events", func(o *observation) {
			own := o.agents[0]
			rankOfAgent(o).Source = nil
			o.agents, o.ownAgent = nil, &own
		}, []string{"worker a: its agent is not connected"}},
		{"lease", func(o *observation) {
			since := time.Date(2026, 1, 1, 12, 30, 0, 0, time.UTC)
			o.router.fleet.Ranks[1].UnleasedSince = &since
		}, []string{"worker b: it serves without a lease since 12:30:00: its agent is silent"}},
		{"index-size", func(o *observation) {
			*o.router.fleet.Index = indexSeen{FleetBlocks: 9_000_000, Room: 4_893_354, NeededBytes: 493_714_286}
		},
			[]string{"room for 4893354 of the 9000000 blocks", "index.maxBytes to 471 MiB"}},
		{"file", func(o *observation) { o.workers[0].inRouter = false }, []string{"worker a: it is in the configuration and not"}},
		{"absent", func(o *observation) {
			setSample(o, 2, "stator_fleet_expected_workers", "model", "m", "role", "aggregated", "node", "gpu-1")
			setSample(o, 1, "stator_fleet_present_workers", "model", "m", "role", "aggregated", "node", "gpu-1")
		}, []string{"model m on node gpu-1: 1 of 2 aggregated workers are there", "stator agent --node gpu-1"}},
		{"", func(o *observation) {
			setSample(o, 2, "stator_fleet_expected_workers", "model", "m", "role", "aggregated", "node", "")
			setSample(o, 2, "stator_fleet_present_workers", "model", "m", "role", "aggregated", "node", "")
		}, nil},
		{"absent", func(o *observation) {
			setSample(o, 3, "stator_cluster_expected_parts", "part", "router")
			setSample(o, 1, "stator_cluster_present_parts", "part", "router")
		}, []string{"the cluster: 1 of 3 routers are there", "start stator extproc"}},
		{"", func(o *observation) {
			setSample(o, 3, "stator_cluster_expected_parts", "part", "router")
			setSample(o, 3, "stator_cluster_present_parts", "part", "router")
		}, nil},
		{"reload", func(o *observation) {
			o.router.config = &configSeen{Path: "f", Pending: []string{"prompts.memoryBytes"}}
		},
			[]string{"the router: keys of f have no effect yet: prompts.memoryBytes", "restart the process"}},
		{"reload", func(o *observation) { o.agents[0].config = &configSeen{Path: "f", Error: "nope"} },
			[]string{"it has refused the present content of f: nope"}},
		{"", func(o *observation) { o.router.config = &configSeen{Path: "f"} }, nil},
		{"front-door", func(o *observation) {
			o.gateway.Listen, o.gateway.Auth.KeysFile = "0.0.0.0:8080", "keys.yaml"
		}, []string{"without TLS", "set gateway.tls"}},
		{"front-door", func(o *observation) {
			o.gateway.Listen, o.gateway.TLS.CertFile = "[::]:8080", "tls.crt"
		}, []string{"asks clients for no key"}},
		{"", func(o *observation) {
			o.gateway.Listen, o.gateway.TLS.CertFile, o.gateway.Auth.KeysFile = "10.0.0.1:8443", "tls.crt", "keys.yaml"
		}, nil},
		{"", func(o *observation) { o.gateway.Listen = "127.0.0.1:8080" }, nil},
		{"model", func(o *observation) { o.models[0].err, o.models[0].tokens, o.models[0].contextLength = broken, nil, 0 }, []string{"model m: broken", "models[].path"}},
		{"model-files", func(o *observation) { setSample(o, 1, "stator_extproc_model_without_files", "model", "m") },
			[]string{"model m: the router does not have its files", "/readyz"}},
		{"engine", func(o *observation) { o.workers[1].engine = engineSeen{err: broken} }, []string{"worker b: its engine at b:8000 does not answer"}},
		{"engine", func(o *observation) { o.workers[1].engine = engineSeen{err: broken, needsTLS: true} }, []string{"worker b: its engine at b:8000 speaks TLS, and the configuration has no engineTLS", "set engineTLS.caFile"}},
		{"engine", func(o *observation) {
			o.workers[1].engine = engineSeen{err: &enginetls.Error{What: "the engine speaks no TLS", Remedy: "remove engineTLS", Err: broken}}
		}, []string{"worker b: there is no connection to its engine at b:8000: the engine speaks no TLS (broken)", "remove engineTLS"}},
		{"served-name", func(o *observation) { o.workers[0].engine.served = []servedModel{{ID: "other"}} }, []string{"worker a: it serves other and not m", "--served-model-name m"}},
		{"", func(o *observation) {
			o.workers[0].engine.served = []servedModel{{ID: "x", MaxLen: 1}, {ID: "alias", MaxLen: 4096}}
		}, nil},
		{"same-address", func(o *observation) {
			o.workers[0].address, o.workers[1].address = "10.0.0.1:80", "[::ffff:10.0.0.1]:80"
		},
			[]string{"worker b: it has the address of worker a, [::ffff:10.0.0.1]:80", "must not be under models[].workers too"}},
		{"same-address", func(o *observation) {
			o.workers[0].address, o.workers[1].address = "10.0.0.1:80", "engine:80"
			o.router.fleet.Ranks[1].Address = "10.0.0.1:80"
		}, []string{"worker b: it has the address of worker a, engine:80"}},
		{"role", func(o *observation) { o.router.fleet.Ranks[1].Role = "prefill" }, []string{"worker b: its role is prefill, so it gets no requests"}},
		{"role", func(o *observation) { o.router.fleet.Ranks[1].Role = "decode" },
			[]string{"worker a: its role is aggregated, so it gets no requests"}},
		{"", func(o *observation) { o.router.fleet.Ranks[0].Role, o.router.fleet.Ranks[1].Role = "prefill", "decode" }, nil},
		{"", split(func(*observation) {}), nil},
		{"halves", split(func(o *observation) { o.router.fleet.Ranks[1].State = "down" }),
			[]string{"model m: of its 1 decode rank none is ready", "no request of the model can be served", "with the role decode"}},
		{"halves", split(func(o *observation) { o.router.fleet.Ranks[0].State = "starting" }),
			[]string{"model m: of its 1 prefill rank none is ready", "compute all prompts themselves"}},
		{"transfer-connector", split(func(o *observation) { o.workers[0].engine.transferSeen = true }),
			[]string{"worker a: its role is prefill with transfer nixl, and its metrics show no connector", "NixlConnector"}},
		{"transfer-connector", split(func(o *observation) {
			for i := range o.workers {
				o.workers[i].transfer, o.workers[i].engine.transferSeen, o.workers[i].engine.transfer = "p2p", true, fleet.Transfer(2-i)
			}
		}), []string{"worker b: its role is decode with transfer p2p, and its metrics show transfer nixl", "give it a tier of type p2p"}},
		{"transfer-connector", split(func(o *observation) {
			o.workers[0].kind, o.workers[0].engine.mode = engines.SGLang, "prefill"
			o.workers[1].kind, o.workers[1].engine.mode, o.workers[1].engine.cachingOff = engines.SGLang, "null", false
		}), []string{"worker b: its role is decode, and its --disaggregation-mode is null", "--disaggregation-mode decode"}},
		{"", split(func(o *observation) {
			o.workers[1].kind, o.workers[1].engine.mode, o.workers[1].engine.cachingOff = engines.SGLang, "decode", true
		}), nil}, // SGLang turns the prefix cache off in this mode
		{"transfer-path", split(func(o *observation) {
			o.workers[0].engine.served[0].Root, o.workers[1].engine.served[0].Root = "/models/m", "/models/m/"
		}), []string{`worker b: it was started with the model path "/models/m/", and worker a with "/models/m"`, "the same text"}},
		{"", split(func(o *observation) {
			o.workers[0].engine.served[0].Root, o.workers[1].engine.served[0].Root = "/models/m", "/other/m"
			o.workers[0].transfer, o.workers[1].transfer = "p2p", "p2p"
		}), nil}, // only NIXL compares the text
		{"transfer-version", split(func(o *observation) {
			o.workers[0].engine.version, o.workers[1].engine.version = "0.32.0", "0.33.0"
		}), []string{`worker b: its engine has version "0.33.0", and that of worker a has "0.32.0"`, "run one version"}},
		{"transfer-version", split(func(o *observation) {
			third := o.workers[0]
			third.name, third.address, third.engine.version = "c", "c:8000", "0.31.0"
			o.workers[0].engine.version, o.workers[1].engine.version = "0.32.0", "0.32.0"
			o.workers = append(o.workers, third)
		}), []string{`worker c: its engine has version "0.31.0", and that of worker b has "0.32.0"`}},
		{"transfer-address", split(func(o *observation) {
			o.workers[0].transfer, o.workers[0].transferAt, o.workers[0].transferErr = "bootstrap", "a:8998", broken
		}), []string{"worker a: the address of its transfers, a:8998, cannot be connected to: broken", "--disaggregation-bootstrap-port"}},
		{"transfer-address", func(o *observation) {
			o.workers[0].transfer, o.workers[0].transferAt, o.workers[0].transferErr = "p2p", "a:5710", broken
		}, []string{"a:5710, cannot be connected to: broken", "VLLM_P2P_SIDE_CHANNEL_HOST"}}, // of an aggregated worker too
		{"block-size", split(func(o *observation) { o.workers[1].sockets[0].blockSize = 32 }), []string{"worker b: its blocks have 32 tokens"}},
		{"engine-hashes", split(func(o *observation) { o.workers[1].sockets[0].roots[root{1, 16}] = 12 }), []string{"blocks transferred between engines"}},
		{"adapters", func(o *observation) {
			o.workers[0].engine.served = append(o.workers[0].engine.served, servedModel{ID: "lora-a", Parent: "m"}, servedModel{ID: "alias", Parent: "m"})
			o.models[0].adapters = []string{"lora-a"}
		}, []string{`worker a: requests cannot reach 1 adapter of its engine: "alias"`, "under another name"}},
		{"adapters", func(o *observation) {
			o.workers[1].model = "other"
			for i := range 2 {
				o.workers[i].engine.served = append(o.workers[i].engine.served, servedModel{ID: "support", Parent: o.workers[i].model})
			}
		}, []string{`adapter "support": engines of 2 models list it: m, other`, "under another name on the engines of all models but one"}},
		{"adapters", func(o *observation) {
			o.workers[0].kind, o.workers[1].kind = engines.VLLM, engines.VLLM
			o.workers[0].engine.served = append(o.workers[0].engine.served, servedModel{ID: "lora-a", Parent: "m"})
			o.models[0].adapters = []string{"lora-a", "lora-b"}
		}, []string{`model m: none of its engines has loaded 1 adapter of models[].adapters: "lora-b"`, "refused with 503"}},
		{"events-off", func(o *observation) {
			o.workers[0].kvEvents, o.workers[0].sockets, o.workers[0].engine.sources = "auto", nil, nil
		}, []string{`worker a: its kvEvents is "auto", and its engine publishes none`, "--kv-events-config"}},
		{"events-off", func(o *observation) {
			o.workers[0].kind, o.workers[0].sockets[0].messages, o.workers[0].engine.eventsOff = engines.SGLang, 0, true
		}, []string{"its engine publishes none", `"topic": "kv-events"`}},
		{"events-unlisted", func(o *observation) {
			o.workers[0].kvEvents, o.workers[0].kvReplay, o.workers[0].sockets = "auto", "", nil
			o.workers[0].engine.sources, o.workers[0].engine.sourcesErr, o.workers[0].engine.version = nil, broken, "0.9"
		}, []string{`its engine of version "0.9" does not list its event sockets: broken`, `set kvEvents to "tcp://a:5557"`}},
		{"events-replay", func(o *observation) { o.workers[0].kvReplay, o.workers[0].engine.replayOff = "", true },
			[]string{"has no replay socket", "and set the worker's kvReplay"}},
		{"events-replay", func(o *observation) { o.workers[0].kvReplay = "" }, []string{`set its kvReplay to "tcp://a:5558"`}},
		{"dynamo-frontend", func(o *observation) { o.workers[0].kind, o.workers[0].engine.workers = engines.Dynamo, 2 }, []string{"to 2 workers", "a frontend for each worker"}},
		{"dynamo-frontend", func(o *observation) {
			o.workers[0].kind, o.workers[0].engine.workers, o.workers[0].engine.metricsErr = engines.Dynamo, 0, broken
		}, []string{"has no worker for the model"}},
		{"", func(o *observation) { o.workers[0].kind, o.workers[0].engine.workers = engines.Dynamo, -1 }, nil},
		{"engine-metrics", func(o *observation) { o.workers[0].engine.metricsErr = broken }, []string{"its metrics cannot be read: broken", "--disable-log-stats"}},
		{"cache-capacity", func(o *observation) { o.workers[0].engine.capacity, o.workers[0].blocks = 8192, 100 }, []string{"8192 tokens, which are 512 blocks, and its blocks is 100"}},
		{"", func(o *observation) { o.workers[0].engine.capacity, o.workers[0].blocks = 8192, 512 }, nil},
		{"tokenizer", func(o *observation) { o.workers[0].engine.tokens[2] = []uint32{4, 9} }, []string{"has 2 tokens on the engine and 1 here; token 1 differs", "configured: models/m"}},
		{"tokenizer", func(o *observation) { o.workers[0].engine.tokens[4] = []uint32{6, 9, 8} }, []string{"a chat has 3 tokens", "chat template"}},
		{"", func(o *observation) { o.workers[0].engine.tokens[4] = nil }, nil},
		{"context-length", func(o *observation) { o.workers[0].engine.served[0].MaxLen = 2048 }, []string{"its max_model_len is 2048, and the context length of model m is 4096", "refused by the engine"}},
		{"context-length", func(o *observation) { o.workers[0].engine.served[0].MaxLen = 8192 }, []string{"the router refuses prompts"}},
		{"context-length", func(o *observation) {
			o.models[0].contextLength, o.models[0].lengthIsSet = 1024, false
			o.workers[0].engine.served[0].MaxLen = 2048
		}, []string{"worker a: its max_model_len is 2048, and the context length of model m is 4096", "refused by the engine"}},
		{"", func(o *observation) { o.models[0].contextLength, o.models[0].lengthIsSet = 1024, false }, nil},
		{"block-size", func(o *observation) { o.workers[0].engine.blockSize, o.workers[0].sockets[0].blockSize = 32, 0 },
			[]string{"its blocks have 32 tokens according to its metrics, and models[].blockSize of model m is 16", "leave models[].blockSize out"}},
		{"block-size", func(o *observation) { o.workers[0].sockets[0].blockSize = 64 }, []string{"64 tokens according to its events"}},
		{"", split(func(o *observation) { o.models[0].blockSize, o.workers[1].sockets[0].blockSize = 0, 64 }), nil}, // each has its own
		{"block-size", split(func(o *observation) { o.models[0].blockSize, o.workers[1].sockets[0].blockSize = 0, 18 }),
			[]string{"worker b: its blocks have 18 tokens according to its events, which does not go with the blocks of model m of 16"}},
		{"", func(o *observation) { // a model whose prompts are not read
			o.models[0].path, o.models[0].tokens = "", nil
			o.workers[0].engine.blockSize, o.workers[0].sockets[0].blockSize, o.workers[0].engine.cachingOff = 32, 32, true
			o.workers[0].engine.served[0].MaxLen = 512
		}, nil},
		{"prefix-caching", func(o *observation) { o.workers[0].engine.cachingOff = true }, []string{"--enable-prefix-caching"}},
		{"event-socket", unreachable(func(w *workerSeen) { w.engine.sources = nil }), []string{"tcp://a:5557 of rank 0 cannot be connected to: refused", "the engine publishes no events: start it with --kv-events-config"}},
		{"event-socket", unreachable(func(w *workerSeen) { w.engine.sources[0].Endpoint = "tcp://a:6000" }), []string{"the engine publishes at tcp://a:6000: set the worker's kvEvents"}},
		{"event-socket", unreachable(func(w *workerSeen) { w.engine.sources[0].NamesHost = true }), []string{"the engine connects there and does not bind"}},
		{"event-socket", unreachable(func(*workerSeen) {}), []string{"a firewall"}},
		{"event-socket", unreachable(func(w *workerSeen) { w.engine.sources, w.engine.sourcesErr = nil, broken }), []string{"with a host instead of *, the engine connects"}},
		{"", func(o *observation) { o.workers[0].sockets[0].err = broken }, nil}, // the router has its events: an agent relays them
		{"events-unused", func(o *observation) { o.workers[0].kvEvents, o.workers[0].sockets = "", nil }, []string{`set its kvEvents to "tcp://a:5557" and kvReplay to "tcp://a:5558"`}},
		{"events-arrive", func(o *observation) { o.router.after[0].State = "none" }, []string{"published 100 messages, and none reached the router"}},
		{"events-arrive", func(o *observation) {
			o.router.after[0].State = "none"
			o.workers[0].sockets[0] = socketSeen{endpoint: "tcp://a:5557"}
		}, []string{"computed prompts of 50000 tokens and published nothing", "set kvReplay"}},
		{"", func(o *observation) {
			o.router.after[0].State = "none"
			o.workers[0].sockets[0].messages, o.workers[0].engine.queries, o.workers[0].engine.hits = 0, 0, 0
		}, nil}, // it is idle
		{"events-understood", func(o *observation) {
			o.workers[0].sockets[0].malformed, o.workers[0].sockets[0].parseError = 3, "what"
		}, []string{"3 of 100 messages of rank 0 cannot be decoded: what"}},
		{"events-understood", func(o *observation) { o.workers[0].sockets[0].unknown = 2 }, []string{"2 events of rank 0 have an unknown kind"}},
		{"event-content", func(o *observation) { o.workers[0].sockets[0].noTokens = 400 }, []string{"400 of 500 blocks that rank 0 stored came without their tokens"}},
		{"cache-state", func(o *observation) { o.router.after[0].State, o.router.after[0].Lost = "stale", 2 }, []string{"events were lost 2 times", "kvReplay"}},
		{"cache-state", func(o *observation) { o.router.after[0].State = "stale" }, []string{"its events have stopped"}},
		{"", func(o *observation) { o.router.after[0].State, o.router.after[0].Reason = "stale", "block_size" }, nil}, // see block-size
		{"cache-state", func(o *observation) { o.router.after[0].State, o.router.after[0].Reason = "stale", "unreadable" }, []string{"could not be decoded"}},
		{"cache-state", func(o *observation) { o.router.after[0].State, o.router.after[0].Reason = "stale", "agent" }, []string{"its agent does not have", "--agent"}},
		{"cache-state", func(o *observation) {
			o.router.watched = 3 * time.Second
			o.router.before[0].State, o.router.after[0].State, o.router.after[0].Seq = "syncing", "syncing", o.router.before[0].Seq
		}, []string{"rank 0 has waited 3s for missing events"}},
		{"", func(o *observation) { o.router.before[0].State, o.router.after[0].State = "syncing", "syncing" }, nil}, // it makes progress
		{"epoch", func(o *observation) { setSample(o, 9, "stator_feed_ignored_total", "reason", "wrong_epoch") }, []string{"from an engine process that is not in the fleet: 2 batches"}},
		{"epoch", func(o *observation) { setSample(o, 1, "stator_feed_ignored_total", "reason", "unknown_worker") }, []string{"data-parallel size"}},
		{"clock", func(o *observation) { o.router.clockAhead = -time.Hour }, []string{"router: its clock is 1h0m0s behind the clock of this machine"}},
		{"clock", func(o *observation) { o.workers[0].engine.clockAhead = 5 * time.Second }, []string{"worker a: its clock is 5s ahead of the clock"}},
		{"clock", func(o *observation) { o.workers[0].sockets[0].sentAt = time.Unix(1090, 0) }, []string{"30s ahead"}},
		{"hit-rate", func(o *observation) { setSample(o, 90_000, "stator_route_cached_tokens_total") }, []string{"it predicted 90 % of prompt tokens as cached, and the engines found 40 %"}},
		{"hit-rate", func(o *observation) { setSample(o, 100, "stator_route_cached_tokens_total") }, []string{"found by chance"}},
		{"asleep", func(o *observation) { o.router.fleet.Ranks[1].Asleep = true }, []string{"worker b: its engine sleeps", "/wake_up"}},
		{"cache-state", func(o *observation) { o.router.after[0].State, o.router.after[0].Reason = "stale", "promise" },
			[]string{"found none of the blocks", "/reset_prefix_cache"}},
		{"prefix-breaker", breaker("role", "system", "message", "0", "kind", "date"),
			[]string{"model m: a date at character 31 of message 0 (system) differs from prompt to prompt, at about token 12", "1200000 tokens a day, 40 %"}},
		{"prefix-breaker", breaker("role", "prompt", "message", "0", "kind", "hash"), []string{"an identifier at character 31 of the prompt differs"}},
		{"prefix-breaker", breaker("role", "template", "message", "0", "kind", "new"), []string{"a text at character 31", "chat_template_kwargs"}},
		{"", func(o *observation) { setSample(o, 0.01, "stator_route_prefix_breaker_ratio", "model", "m") }, nil},
		{"drift", func(o *observation) { setSample(o, 0.5, "stator_feed_drift_ratio", "worker", "a") }, []string{"50 % of its prompt tokens were predicted as cached and were not"}},
		{"drift", func(o *observation) { setSample(o, -0.3, "stator_feed_drift_ratio", "worker", "a") }, []string{"30 % of its prompt tokens were cached and not predicted"}},
		{"drift", func(o *observation) { setSample(o, 2, "stator_feed_drift_resyncs_total", "worker", "b") }, []string{"worker b: its cache state was wrong and was rebuilt 2 times"}},
		{"engine-hashes", func(o *observation) { o.workers[1].engine.hashAlgo = "sha256_cbor" }, []string{"worker b: it hashes by sha256_cbor"}},
		{"engine-hashes", func(o *observation) {
			o.workers[0].engine.hashAlgo, o.workers[1].engine.hashAlgo = "xxhash", "xxhash"
		}, []string{"worker b: it hashes by xxhash", "seeded at random"}},
		{"engine-hashes", func(o *observation) { o.workers[1].sockets[0].roots[root{1, 16}] = 12 }, []string{"worker b: its hash of the same block differs from that of a (by sha256)", "PYTHONHASHSEED"}},
		{"", func(o *observation) { o.workers[1].sockets[0].roots = map[root]kvevent.EngineHash{{2, 16}: 12} }, nil},
	}
	tested := map[string]bool{}
	for i, tt := range tests {
		t.Run(fmt.Sprintf("%d-%s", i, tt.check), func(t *testing.T) {
			o := healthyFleet()
			tt.breakIt(o)
			found := diagnose(o).Findings
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
				t.Errorf("a text has more than one line:\n%s", text)
			}
		})
		tested[tt.check] = true
	}
	for _, c := range checks {
		if !tested[c.name] {
			t.Errorf("check %s has no test", c.name)
		}
	}
}

// split makes worker a a prefill worker and worker b a decode worker before it breaks something.
func split(breakIt func(o *observation)) func(o *observation) {
	return func(o *observation) {
		for i, role := range []string{"prefill", "decode"} {
			o.workers[i].role, o.router.fleet.Ranks[i].Role = role, role
		}
		breakIt(o)
	}
}

// rankOfAgent returns the rank that the agent has.
func rankOfAgent(o *observation) *agentRank { return &o.agents[0].engines[0].Ranks[0] }

// unreachable breaks the event socket of worker a.
func unreachable(more func(w *workerSeen)) func(o *observation) {
	return func(o *observation) {
		o.workers[0].sockets[0] = socketSeen{endpoint: "tcp://a:5557", err: errors.New("refused")}
		o.router.before[0].State, o.router.after[0].State = "none", "none"
		more(&o.workers[0])
	}
}

// breaker sets the metrics of a place in prompts that keeps caches from being hit.
func breaker(labels ...string) func(o *observation) {
	return func(o *observation) {
		labels := append([]string{"model", "m", "character", "31", "token", "12"}, labels...)
		setSample(o, 0.4, "stator_route_prefix_breaker_ratio", labels...)
		setSample(o, 1.2e6/secondsPerDay, "stator_route_prefix_breaker_tokens_per_second", labels...)
	}
}

// setSample sets one of the router's metrics at the end of the observation.
func setSample(o *observation, value float64, name string, pairs ...string) {
	labels := map[string]string{}
	for i := 0; i+1 < len(pairs); i += 2 {
		labels[pairs[i]] = pairs[i+1]
	}

	o.router.metricsNow = slices.DeleteFunc(o.router.metricsNow, func(s metric.Sample) bool {
		return s.Name == name && maps.Equal(s.Labels, labels)
	})
	o.router.metricsNow = append(o.router.metricsNow, metric.Sample{Name: name, Labels: labels, Value: value})
}

func TestClockAheadFromDateHeader(t *testing.T) {
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

// TestPrint writes a diagnosis as text and as JSON.
func TestPrint(t *testing.T) {
	var text, asJSON strings.Builder
	d := Diagnosis{Checks: 21, Workers: 1, Findings: []Finding{{Check: "bus", Subject: "bus", What: "gone", Why: "it matters", Remedy: "start it"}}}
	d.Print(&text)
	if err := d.PrintJSON(&asJSON); err != nil {
		t.Fatal(err)
	}
	if want := "bus: gone\n  why: it matters\n  do:  start it\n"; text.String() != want {
		t.Errorf("%q, want %q", text.String(), want)
	}
	if !strings.Contains(asJSON.String(), `"remedy": "start it"`) {
		t.Error(asJSON.String())
	}

	text.Reset()
	d = Diagnosis{Checks: 21, Workers: 1, looked: "the router and 1 worker", Findings: []Finding{
		{Check: "c", Subject: "s", What: "unusual", Why: "it may matter", Remedy: "look", Note: true},
	}}
	d.Print(&text)
	if want := "note: s: unusual\n  why: it may matter\n  do:  look\n21 checks of the router and 1 worker: nothing is wrong\n"; text.String() != want {
		t.Errorf("%q, want %q", text.String(), want)
	}
	if d.Faults() != 0 {
		t.Errorf("%d faults, and the only finding is a note", d.Faults())
	}
}
