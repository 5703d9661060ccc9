package config

import (
	"fmt"
	"net/netip"
	"net/url"
	"strings"

	"github.com/stator-project/stator/internal/engines"
	"github.com/stator-project/stator/internal/fleet"
)

// Worker is an engine that is started elsewhere.
type Worker struct {
	// Name is unique in the file and matches [a-z0-9-]+.
	Name string `yaml:"name" default:"required"`
	// Address is the IP and port of the engine's HTTP server, or a DNS name and the port: "10.0.0.1:8000", "[fd00::1]:8000",
	// "engine-0.engines:8000". Each router and control plane looks a name up by itself, again every 30 s, and every few
	// seconds while the worker is not ready. A name is one engine: of several IPs the lowest is used, IPv4 first.
	Address string `yaml:"address" default:"required"`
	// Role is the part of a request that these workers serve: "aggregated" is all of it. Of a model with "prefill" and "decode"
	// workers, one computes the prompt and another one fetches its KV cache and decodes: see docs/disaggregation.md.
	Role string `yaml:"role"`
	// Transfer is the way that KV caches get from prefill workers to decode workers: "nixl" is vLLM's NixlConnector, "p2p"
	// vLLM's OffloadingConnector with a tier of that type, "bootstrap" SGLang, "context" TensorRT-LLM's
	// disaggregated_params, and "none" no transfer. All prefill and decode workers of a model must have the same. An
	// aggregated worker with "p2p" lets others pull prompts from its cache.
	Transfer string `yaml:"transfer" default:"none for aggregated workers, else the engine's: nixl, bootstrap or context"`
	// TransferAddress is the host and port that other engines connect to with transfer p2p or bootstrap: the address of
	// vLLM's p2p tier, whose rank r has the same with its port raised by r, or of SGLang's bootstrap server.
	TransferAddress string `yaml:"transferAddress" default:"with bootstrap the host of address, and port 8998"`
	// Engine is the kind of engine: vllm, sglang, trtllm, llamacpp, dynamo, sim or exec. It sets which metrics are read, and
	// the dialect of its KV events. "dynamo" is the frontend of one worker of NVIDIA Dynamo: see docs/engines/dynamo.md.
	Engine string `yaml:"engine"`
	// KVEvents is the ZMQ endpoint on which rank 0 publishes KV events, such as "tcp://10.0.0.1:5557". "auto"
	// asks the engine for the endpoints of all ranks, which vLLM answers, and reads ports 5557 and up of one that does not.
	// "bind:tcp://*:5557" waits for an engine that connects. TensorRT-LLM's is "http://10.0.0.1:8000/kv_cache_events", which only one
	// reader may use. Without it, the cache's content is predicted from the requests that were sent there. A host that is the name in
	// address is the IP that address has; other names are looked up at each connection.
	KVEvents string `yaml:"kvEvents"`
	// KVReplay is the ZMQ endpoint on which rank 0 replays its KV events. Without it, a gap or a lost
	// connection leaves the rank stale until the engine restarts or clears its cache.
	KVReplay string `yaml:"kvReplay"`
	// Ranks is the number of data-parallel ranks, 1 to 1024.
	Ranks int `yaml:"ranks"`
	// Weight is the worker's share of the traffic that Envoy routes without a decision, and of the traffic that weighted
	// policies route, 1 to 1000. A plan on the bus may set another.
	Weight int `yaml:"weight"`
	// Blocks is the KV capacity of a rank in blocks. 0 is the capacity that the metrics of vLLM, SGLang or Dynamo report.
	Blocks int `yaml:"blocks"`
	// MaxRequests is the number of requests that a rank runs at once: vLLM's --max-num-seqs, which vLLM does not report. 0 is the number
	// that the engine reports, or that its load shows when it is full.
	MaxRequests int `yaml:"maxRequests"`
	// HealthPath is the path at which routers and control planes ask the engine for its health, each once a second. "none"
	// asks nothing: the worker is ready until requests fail there. For engine dynamo the default is
	// "/v1/models/NAME/ready", because a frontend without its worker answers 200 at /health.
	HealthPath string `yaml:"healthPath" default:"/health"`
	// Taints are marks of the worker, such as "long-context", that requests may require or prefer: see docs/routing.md. The taints
	// "zone=…", "rack=…" and "nvlink=…" name the place of the worker, by which the times of transfers are learned and pairs of workers
	// chosen: see docs/disaggregation.md.
	Taints []string `yaml:"taints"`
}

// FleetWorkers returns the workers that the configuration lists, and those that were found. They have no agent that could report their
// state, so it is ready; their engines are asked for their health, unless that is turned off. Workers that are listed by a DNS name have
// no address yet.
func (c *Config) FleetWorkers() ([]fleet.Worker, error) {
	var workers []fleet.Worker
	for i := range c.Models {
		m := &c.Models[i]
		for j := range m.Workers {
			w, err := m.Workers[j].fleetWorker(m)
			if err != nil {
				return nil, fmt.Errorf("worker %s: %w", m.Workers[j].Name, err)
			}
			workers = append(workers, w)
		}
	}
	return append(workers, c.Found...), nil
}

// fleetWorker returns the worker of a model.
func (w *Worker) fleetWorker(m *Model) (fleet.Worker, error) {
	role, err := fleet.ParseRole(w.Role)
	if err != nil {
		return fleet.Worker{}, err
	}
	taints, err := fleet.NewTaints(w.Taints)
	if err != nil {
		return fleet.Worker{}, err
	}
	transfer, err := fleet.ParseTransfer(w.Transfer)
	if err != nil {
		return fleet.Worker{}, err
	}

	asked := w.HealthPath
	if asked == noHealthPath {
		asked = ""
	}
	address, named := w.Address, ""
	if _, _, isName := fleet.SplitName(w.Address); isName {
		address, named = "", w.Address
	}
	return fleet.Worker{
		Name: w.Name, Model: m.Name, Role: role, Address: address, Named: named, Engine: w.Engine,
		Ranks: w.Ranks, Weight: uint32(w.Weight), KVEvents: w.KVEvents, KVReplay: w.KVReplay,
		Blocks: w.Blocks, BlockSize: int(m.BlockSize), MaxRequests: w.MaxRequests, State: fleet.Ready, Taints: taints,
		HealthPath: asked, Transfer: transfer, TransferAt: w.TransferAddress,
	}, nil
}

func (v *validator) worker(w *Worker, path string) {
	v.name(w.Name, path)
	_, err := netip.ParseAddrPort(w.Address)
	_, _, isName := fleet.SplitName(w.Address)
	v.is(err == nil || isName, path+".address",
		"is %q: use an IP and a port, such as 10.0.0.1:8000, or a DNS name and a port, such as engine-0:8000", w.Address)
	v.role(w.Role, path)
	v.engine(w.Engine, (*engines.Kind).IsKind, path)
	v.transfer(w, path)
	v.is(w.Ranks >= 1 && w.Ranks <= fleet.MaxRanks, path+".ranks", "must lie between 1 and %d", fleet.MaxRanks)
	v.taints(w.Taints, path+".taints")
	v.is(w.Weight >= 1 && w.Weight <= fleet.MaxWeight, path+".weight", "must lie between 1 and %d", fleet.MaxWeight)
	v.is(w.Blocks >= 0, path+".blocks", "must not be negative")
	v.is(w.MaxRequests >= 0 && w.MaxRequests <= fleet.MaxSlots, path+".maxRequests", "must lie between 0 and %d", fleet.MaxSlots)
	v.is(w.HealthPath == noHealthPath || isPath(w.HealthPath), path+".healthPath",
		"is %q: use a path such as /health, or none", w.HealthPath)
	v.events(w, path)
}

// noHealthPath is the value of healthPath with which a worker is not asked.
const noHealthPath = "none"

// isPath reports whether s is a path of a URL that needs no escapes.
func isPath(s string) bool {
	u, err := url.ParseRequestURI(s)
	return err == nil && len(s) <= maxHealthPath && strings.HasPrefix(s, "/") && u.RequestURI() == s && u.Host == ""
}

// maxHealthPath bounds the bytes of a health path.
const maxHealthPath = 256

// events checks the endpoints of KV events.
func (v *validator) events(w *Worker, path string) {
	events, isBound := strings.CutPrefix(w.KVEvents, "bind:")
	switch {
	case events == "" && !isBound || events == "auto" && !isBound:
	case engines.Of(w.Engine).Dialect == engines.TRTLLMEvents:
		v.is(strings.HasPrefix(events, "http://") && !isBound, path+".kvEvents",
			"is %q: use a URL such as http://10.0.0.1:8000/kv_cache_events", w.KVEvents)
	default:
		v.is(isEndpoint(events, isBound), path+".kvEvents",
			"is %q: use auto, tcp://host:port, ipc:///path, or bind:tcp://*:port", w.KVEvents)
	}
	v.is(w.KVReplay == "" || isEndpoint(w.KVReplay, false), path+".kvReplay",
		"is %q: use tcp://host:port or ipc:///path", w.KVReplay)
}

// isEndpoint reports whether text is a ZMQ endpoint to connect to, or to bind.
func isEndpoint(text string, bind bool) bool {
	scheme, address, _ := strings.Cut(text, "://")
	if scheme == "ipc" && !bind {
		return address != ""
	}

	colon := strings.LastIndexByte(address, ':')
	if scheme != "tcp" || colon < 0 || colon == len(address)-1 {
		return false
	}
	host := address[:colon]
	return bind || host != "" && host != "*"
}
