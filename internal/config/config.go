package config

import (
	"time"

	"github.com/stator-project/stator/internal/fleet"
)

// The apiVersion and kind every file must carry.
const (
	APIVersion = "stator.dev/v1alpha1"
	Kind       = "Stator"
)

// MaxBodyBytes is the largest value of gateway.maxBodyBytes.
const MaxBodyBytes = 1 << 30

// Config is the whole file.
//
// The comments of its fields, and of the fields of the structs in it, are the cells of docs/configuration.md. Their tags mean:
// yaml is the key; reload names the parts that read the value only at their start, or is "live" in a group of such keys; default is
// shown instead of the value that setDefaults gives, and "required" means that there is none.
type Config struct {
	// APIVersion is the version of the file's format: "stator.dev/v1alpha1".
	APIVersion string `yaml:"apiVersion" default:"required" reload:"every part"`
	// Kind is the kind of the file: "Stator".
	Kind string `yaml:"kind" default:"required" reload:"every part"`
	// Gateway configures the listener for clients and its limits.
	Gateway Gateway `yaml:"gateway"`
	// Models are the models that clients may name. Requests that name no model, on paths that are passed
	// through, go to the first one.
	Models []Model `yaml:"models" default:"required"`
	// Index bounds the memory of the KV cache index, and sets when its content is checked.
	Index Index `yaml:"index"`
	// Prompts bounds the memory of prompts.
	Prompts Prompts `yaml:"prompts"`
	// Decisions configures the log of the router's decisions. The newest decisions are always in memory.
	Decisions Decisions `yaml:"decisions"`
	// Tracing has routers and Envoys export spans of requests to a receiver of OpenTelemetry's protocol. Without it there are none.
	Tracing Tracing `yaml:"tracing" reload:"routers"`
	// Bus configures how the processes of one cluster find each other.
	Bus Bus `yaml:"bus"`
	// EngineTLS has every part of Stator, and every Envoy, reach engines by TLS. Without it these connections are not encrypted.
	EngineTLS EngineTLS `yaml:"engineTLS" reload:"every part"`
	// Planner configures how many workers each model has, by the demand of clients and the latencies that they may see.
	Planner Planner `yaml:"planner"`
	// Expected is how many parts the cluster should have. With fewer, routers and "stator doctor" report the absent ones.
	Expected Expected `yaml:"expected"`

	// Found are the workers that were discovered, of models above: see With. A file has none.
	Found []fleet.Worker `yaml:"-"`
}

// Expected has the numbers of parts that should run, in the whole cluster. Routers count those that publish on the bus. Workers need no
// number: launch[].count, or the plan, has it.
type Expected struct {
	// Routers is the number of "stator extproc". 0 is not compared.
	Routers int `yaml:"routers"`
	// ControlPlanes is the number of "stator xds". 0 is not compared.
	ControlPlanes int `yaml:"controlPlanes"`
	// Planners is the number of "stator planner", those that stand by included. 0 is not compared.
	Planners int `yaml:"planners"`
	// Stores is the number of agents that have stores of KV blocks. 0 is not compared.
	Stores int `yaml:"stores"`
}

// Index bounds the memory of the KV cache index, and sets when its content is checked.
type Index struct {
	// MaxBytes bounds the index of a router, and that of an agent. At the bound the blocks that were used least recently are
	// dropped, which lowers the hit rate and never names a wrong worker. From the agent's index a router that starts late gets a
	// snapshot, which then lacks blocks. Snapshots in transfer need at most as much again.
	MaxBytes int64 `yaml:"maxBytes" reload:"routers, agents"`
	// DriftTokens is the number of prompt tokens, at least 1000, for which the cached tokens that decisions promised and the cached
	// tokens that an engine reports are compared at a time. If they differ by more than a quarter of the prompt tokens, the worker's
	// cache state is rebuilt.
	DriftTokens int64 `yaml:"driftTokens" reload:"routers"`
}

// Prompts bounds the memory of prompts.
type Prompts struct {
	// MemoryBytes bounds the memory of rendered prompts, which makes the next turn of a conversation cost only
	// its new text. 64 MiB hold some 10 million tokens; -1 turns it off. At the bound the prompts that were
	// used least recently are dropped, and are tokenized again when they come again.
	MemoryBytes int64 `yaml:"memoryBytes" reload:"routers"`
}

// Decisions configures the log of the router's decisions.
type Decisions struct {
	// Log is a file to which every decision, and the end of its request, is appended as a line of JSON. "stator
	// replay --decisions" plays it. It holds hashes of prompts, no text and no token ids.
	Log string `yaml:"log" file:"relative" default:"none" reload:"routers"`
	// LogBytes bounds the file, at least 65536. A full one is renamed by appending ".1", and replaces the last
	// file of that name.
	LogBytes int64 `yaml:"logBytes" reload:"routers"`
	// LinesPerSecond has routers log a line for each decision, at most so many a second, up to 1000: the picked worker, the next best and
	// by how much it costs more, the cached tokens, and the cache state. 0 logs none.
	LinesPerSecond int `yaml:"linesPerSecond" reload:"routers"`
	// HashEvery is the number of blocks of a prompt that share one hash, 1 to 65536. Fewer show more
	// exactly where prompts part, in longer lines.
	HashEvery int `yaml:"hashEvery" reload:"routers"`
}

// Tracing configures the spans of requests: see docs/operations.md.
type Tracing struct {
	// Endpoint is the receiver of OTLP: "http://host:4318" or "https://host" for OTLP over HTTP, and "grpc://host:4317" for OTLP over gRPC
	// without TLS. A receiver that is away or slow delays no request; its spans are lost and counted. Envoys use it, too, except over
	// "https".
	Endpoint string `yaml:"endpoint" default:"none"`
	// Ratio is the share of the requests without a header traceparent whose spans are exported, 0 to 1. A request with that header
	// follows the header's flag. The spans of refused requests, and of answers with a status of 500 or more, are always exported.
	Ratio float64 `yaml:"ratio"`
	// SlowerThan has the spans of all requests exported whose first token takes at least so long, although their engines' spans are not.
	// 0s is none.
	SlowerThan Duration `yaml:"slowerThan"`
}

// Duration is a time.Duration written as "250ms".
type Duration time.Duration

// Std returns the duration as the standard library has it.
func (d Duration) Std() time.Duration { return time.Duration(d) }

func (d Duration) String() string { return time.Duration(d).String() }
