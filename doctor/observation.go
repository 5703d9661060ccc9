package doctor

import (
	"slices"
	"time"

	"github.com/stator-project/stator/internal/adminclient"
	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/engines"
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/kv/kvevent"
	"github.com/stator-project/stator/internal/kvsource"
	"github.com/stator-project/stator/internal/metric"
)

// observation holds every answer that the checks look at. An answer that did not come has its error
// beside it.
type observation struct {
	router  routerSeen
	models  []modelSeen
	workers []workerSeen
	agents  []agentSeen // the agents of Config.Agents
	// ownAgent is the agent in the router's process; nil if there is none.
	ownAgent *agentSeen
	gateway  config.Gateway
	busURL   string // empty if the configuration names no bus
	busErr   error
}

// routerSeen holds the answers of the router's admin port.
type routerSeen struct {
	address string
	admin   *adminclient.Client
	err     error // the port does not answer
	ready   error // the reason why the router is not ready
	fleet   fleetSeen
	config  *configSeen // nil if the router follows no file

	// Cache states and metrics, at the start and at the end of the observation.
	before, after           []cacheRank
	metricsThen, metricsNow metric.Samples

	clockAhead  time.Duration // of our clock
	watched     time.Duration // time between before and after
	noCacheList bool          // /debug/feed does not answer
}

// configSeen is /debug/config.
type configSeen struct {
	Path    string   `json:"path"`
	Error   string   `json:"error"`
	Pending []string `json:"pending_restart"`
}

// fleetSeen is /debug/fleet.
type fleetSeen struct {
	Ranks []fleetRank `json:"ranks"`
	Index *indexSeen  `json:"index"`
}

// indexSeen compares the caches of the fleet with the room of the router's index, in blocks.
type indexSeen struct {
	FleetBlocks int64 `json:"fleet_blocks"`
	Room        int64 `json:"room"`
	MaxBytes    int64 `json:"max_bytes"`
	NeededBytes int64 `json:"needed_bytes"`
}

// fleetRank is one rank of /debug/fleet.
type fleetRank struct {
	Worker string `json:"worker"`
	Model  string `json:"model"`
	Role   string `json:"role"`
	// Transfer and TransferAt are empty for workers that take part in no transfer of KV caches.
	Transfer   string `json:"transfer"`
	TransferAt string `json:"transfer_at"`

	State   string `json:"state"`
	Asleep  bool   `json:"asleep"` // by the engine's last report
	Address string `json:"address"`
	Engine  string `json:"engine"`
	Rank    int    `json:"rank"`
	// UnleasedSince is set if the worker's lease has expired.
	UnleasedSince *time.Time `json:"unleased_since"`
}

// cacheRank is a line of /debug/feed: the router's state of a rank's cache.
type cacheRank struct {
	Worker string  `json:"worker"`
	Rank   int     `json:"rank"`
	State  string  `json:"state"`
	Reason string  `json:"reason"` // why it is stale
	Seq    *uint64 `json:"seq"`
	Lost   uint64  `json:"unrecovered_gaps"`
}

// modelSeen is a model of the configuration.
type modelSeen struct {
	name          string
	names         []string // the name and its aliases
	adapters      []string
	path          string // empty for a model whose prompts are not read
	blockSize     int
	contextLength int        // models[].contextLength, or else the length in its files
	lengthIsSet   bool       // models[].contextLength is set
	err           error      // its files cannot be read
	tokens        [][]uint32 // of each sample request, as tokenized here
}

// workerSeen is one engine process.
type workerSeen struct {
	name, model, address       string
	kind                       *engines.Kind
	fromFile                   bool // the configuration names it
	inRouter                   bool // the router's fleet has it
	kvEvents, kvReplay         string
	role, transfer, transferAt string // empty if they are not known
	transferErr                error  // a connection to transferAt failed
	ranks                      int
	blocks                     int // of the configuration; 0 if it has none
	engine                     engineSeen
	sockets                    []socketSeen
}

// engineSeen holds the answers of an engine's HTTP server. Properties that an engine does not report
// have their zero value.
type engineSeen struct {
	optionsSeen
	err           error // it does not answer
	served        []servedModel
	blockSize     int
	hashAlgo      string // of its prefix cache
	cachingOff    bool
	queries, hits float64 // tokens looked up in its prefix cache, and found there
	tokens        [][]uint32
	sources       []kvsource.Socket // event sockets that it reports
	sourcesErr    error
	clockAhead    time.Duration // of our clock
	needsTLS      bool          // it does not answer without TLS, and speaks it
}

// servedModel is an entry of an engine's /v1/models.
type servedModel struct {
	ID     string `json:"id"`
	MaxLen int    `json:"max_model_len"`
	Root   string `json:"root"`   // the path that the engine was started with
	Parent string `json:"parent"` // the model that an adapter belongs to; empty for a model
}

// socketSeen is one rank's event socket, as read by the doctor itself.
type socketSeen struct {
	rank       int
	endpoint   string
	hadReplay  bool  // a replay socket is configured
	err        error // no connection
	messages   uint64
	malformed  uint64
	parseError string // of the last malformed message
	unknown    int    // events of a kind that this program does not decode
	blockSize  int    // of the last block stored; 0 if none was
	stored     int    // blocks on the device
	noTokens   int    // blocks on the device whose events carry no tokens

	// roots maps the first block of a prompt to the engine's hash of it.
	roots map[root]kvevent.EngineHash

	// The engine's clock in the newest message, zero if messages carry none, and ours when it came.
	sentAt, receivedAt time.Time
}

// root is the content of a prompt's first block.
type root struct {
	block blockhash.Block
	size  int
}

// model returns the model of that name, or nil.
func (o *observation) model(name string) *modelSeen {
	i := slices.IndexFunc(o.models, func(m modelSeen) bool { return m.name == name })
	if i < 0 {
		return nil
	}
	return &o.models[i]
}

// cacheOf returns the router's cache state of a rank at the start and at the end of the observation. ok
// is false if the router had none at the end.
func (o *observation) cacheOf(worker string, rank int) (before, after cacheRank, ok bool) {
	before, _ = findRank(o.router.before, worker, rank)
	after, ok = findRank(o.router.after, worker, rank)
	return before, after, ok
}

func findRank(list []cacheRank, worker string, rank int) (cacheRank, bool) {
	i := slices.IndexFunc(list, func(c cacheRank) bool { return c.Worker == worker && c.Rank == rank })
	if i < 0 {
		return cacheRank{}, false
	}
	return list[i], true
}

// workersOf joins the workers of the configuration with the workers that the router has from elsewhere.
func workersOf(cfg *config.Config, ranks []fleetRank) []workerSeen {
	var all []workerSeen
	for _, m := range cfg.Models {
		for _, w := range m.Workers {
			all = append(all, workerSeen{
				name: w.Name, model: m.Name, address: w.Address, kind: engines.Of(w.Engine), fromFile: true,
				kvEvents: w.KVEvents, kvReplay: w.KVReplay, ranks: w.Ranks, blocks: w.Blocks,
				role: w.Role, transfer: w.Transfer, transferAt: w.TransferAddress,
			})
		}
	}

	for _, r := range ranks {
		i := slices.IndexFunc(all, func(w workerSeen) bool { return w.name == r.Worker })
		if i < 0 {
			i = len(all)
			all = append(all, workerSeen{
				name: r.Worker, model: r.Model, address: r.Address, kind: engines.Of(r.Engine),
				role: r.Role, transfer: r.Transfer, transferAt: r.TransferAt,
			})
		}
		all[i].inRouter = true
		if !all[i].fromFile {
			all[i].ranks = max(all[i].ranks, r.Rank+1)
		}
	}
	return all
}
