// Package config is Stator's one YAML file: strict, explained, reloadable.
//
// [Parse] reads the bytes, fills in defaults and reports everything that is wrong with them
// at once, each problem with its path, such as models[0].launch[1].count. The package
// neither opens files nor watches them, and knows nothing of what the values do beyond the
// ranges in which they make sense.
//
// A *Config is read-only once parsed and may be shared.
package config

import "time"

// The apiVersion and kind every file must carry.
const (
	APIVersion = "stator.dev/v1alpha1"
	Kind       = "Stator"
)

// MaxBodyBytes is the most that gateway.maxBodyBytes may be.
const MaxBodyBytes = 1 << 30

// Config is the whole file.
type Config struct {
	// apiVersion must be stator.dev/v1alpha1.
	APIVersion string `yaml:"apiVersion"`
	// kind must be Stator.
	Kind string `yaml:"kind"`
	// gateway is what clients meet: the listener and its limits.
	Gateway Gateway `yaml:"gateway"`
	// models are what clients may name. The first one also serves requests that name no model
	// on paths that are passed through.
	Models []Model `yaml:"models"`
	// index bounds the memory of the KV cache index.
	Index Index `yaml:"index"`
	// prompts bounds the memory of prompts.
	Prompts Prompts `yaml:"prompts"`
	// decisions says where the router's decisions are kept.
	Decisions Decisions `yaml:"decisions"`
	// planner holds the targets of the planner.
	Planner Planner `yaml:"planner"`
	// bus says how the parts of one cluster find each other.
	Bus Bus `yaml:"bus"`
}

// Gateway is what clients meet.
type Gateway struct {
	// listen is the address on which Envoy serves clients. Default "127.0.0.1:8080"; use
	// "0.0.0.0:8080" to serve other machines. Needs a restart.
	Listen string `yaml:"listen"`
	// maxBodyBytes bounds a request body, as received and after decoding gzip. Default 67108864
	// (64 MiB). A larger one is answered with 413. Raising it costs that much memory in Envoy and
	// in extproc for each request of that size in flight.
	MaxBodyBytes int64 `yaml:"maxBodyBytes"`
	// unknownPaths says what happens to paths that are not parsed: "route" (default) sends them
	// to the least loaded worker of the first model, "reject" answers 404.
	UnknownPaths string `yaml:"unknownPaths"`
	// decisionTimeout is how long Envoy waits for a decision before it sends the request on
	// unpicked. Default "5s". Lower it and a busy extproc costs cache hits; raise it and a hung
	// one costs time.
	DecisionTimeout Duration `yaml:"decisionTimeout"`
	// idleTimeout ends a stream on which no byte moved in either direction. Default "10m".
	IdleTimeout Duration `yaml:"idleTimeout"`
	// affinityHeader is the request header by which Envoy keeps a client on one worker when
	// nobody picks. Default "x-session-id".
	AffinityHeader string `yaml:"affinityHeader"`
	// hints says what clients are trusted with, of what they say about the routing of their requests:
	// "nvext" (default) hears nvext.router and nvext.agent_hints in the body, "headers" hears the
	// headers x-stator-priority, -strict-priority, -deadline, -class, -tenant, -worker and -rank too,
	// which go before the body, and "off" hears nothing. Whoever is heard can go before others.
	Hints string `yaml:"hints"`
}

// Model is a name clients use, the files that describe it, and its workers.
type Model struct {
	// name is what clients put into "model". Required.
	Name string `yaml:"name"`
	// path is a Hugging Face folder (tokenizer.json, chat template, config.json) or one .gguf
	// file; a relative path starts at the configuration file's folder. "builtin:sim" is the small
	// vocabulary that comes with Stator. Required.
	Path string `yaml:"path"`
	// aliases are further names for the same model.
	Aliases []string `yaml:"aliases"`
	// blockSize is the number of tokens in a KV block, 1 to 4096. Default 16. It must equal the
	// engines' own, or no prompt is ever found in their caches.
	BlockSize int `yaml:"blockSize"`
	// profile is a folder with what Dynamo's profiler measured of these workers (prefill_raw_data and
	// decode_raw_data, .npz or .json): a router believes it until it has learned how long prompts and
	// steps take. A relative path starts at the configuration file's folder. Default: a mid-sized
	// model on one data-centre GPU. Needs a restart.
	Profile string `yaml:"profile"`
	// router says how a worker is chosen.
	Router Router `yaml:"router"`
	// launch lists the engines an agent starts and keeps alive.
	Launch []Launch `yaml:"launch"`
	// workers lists engines that someone else runs.
	Workers []Worker `yaml:"workers"`
}

// Router says how a worker is chosen.
type Router struct {
	// policy is kv (default), round-robin, random, power-of-two (the less loaded of two that are
	// drawn), least-loaded, direct (the worker that the request names) or session (rendezvous hashing
	// of gateway.affinityHeader).
	Policy string `yaml:"policy"`
	// temperature spreads choices: 0 (default) always takes the cheapest worker, 1 chooses with
	// probability exp(-cost), costs scaled to 0..1.
	Temperature float64 `yaml:"temperature"`
	// cost is how the kv policy judges workers: delay (default), by how long a request would wait
	// and be computed there and hold up others, as learned; or dynamo, NVIDIA Dynamo's function.
	Cost string `yaml:"cost"`
	// weights replaces weights of the cost by name: of delay prefillWeight, interference, decode, untracked; of
	// dynamo prefillLoadScale, overlap, overlapDecay, decode, requests; of both tier.device, tier.host,
	// tier.disk, tier.external. Default: what the function has by itself, for dynamo what Dynamo has;
	// its prefillLoadScale of 1 is better raised to 16, for more cache hits and shorter queues.
	// "stator replay" shows what weights do to a trace.
	Weights map[string]float64 `yaml:"weights"`
	// busy says when a rank takes no more requests. Default: never.
	Busy Busy `yaml:"busy"`
	// queue says how requests wait while all ranks that may take them are busy.
	Queue Queue `yaml:"queue"`
}

// Busy says when a rank takes no more requests. What is not set is no bound. All of it takes effect
// at once when the file changes.
type Busy struct {
	// prefillTokens is how many tokens of prompts that are not computed yet a rank may have: with
	// more it is busy. Raising it fills engines' own queues, where nobody can be overtaken.
	PrefillTokens int64 `yaml:"prefillTokens"`
	// prefillShare bounds the same as a share of maxNumBatchedTokens, such as 0.8.
	PrefillShare float64 `yaml:"prefillShare"`
	// maxNumBatchedTokens is the engines' max_num_batched_tokens, which prefillShare needs.
	MaxNumBatchedTokens int64 `yaml:"maxNumBatchedTokens"`
	// kvUsage is the share of its KV cache that a rank may have in use, 0 to 1, by its own report or
	// by what is booked there: with more it is busy, until both are below kvRelease.
	KVUsage float64 `yaml:"kvUsage"`
	// kvRelease ends what kvUsage began. Default: nine tenths of kvUsage.
	KVRelease float64 `yaml:"kvRelease"`
	// status is that of a refusal because all ranks are busy: 429, 503 (default) or 529.
	Status int `yaml:"status"`
}

// Queue says how requests wait while all ranks that may take them are busy. All of it takes effect
// at once when the file changes, and who waits keeps their place.
type Queue struct {
	// maxWait is how long a request may wait. Default "0s": none waits, and a request that finds all
	// ranks busy is refused. At most gateway.idleTimeout less 10s, because Envoy's patience ends there.
	MaxWait Duration `yaml:"maxWait"`
	// requests bounds how many may wait. Default 16384. The request that crosses a limit is taken, the
	// next one is refused.
	Requests int `yaml:"requests"`
	// tokens bounds the prompt tokens of what waits. Default 0: no bound.
	Tokens int `yaml:"tokens"`
	// cachedTokens bounds those of them that were cached when their requests came. Default 0: no bound.
	CachedTokens int `yaml:"cachedTokens"`
	// order is fcfs (default: first come, first served; a priority is a head start in seconds) or
	// wspt (the fewest tokens to compute first, weighed by priority).
	Order string `yaml:"order"`
	// fair serves tenants alike, by tokens to compute. A tenant is the header x-stator-tenant where
	// gateway.hints trusts it, else "user" in the body.
	Fair bool `yaml:"fair"`
	// classes share ranks by deficit round robin. The first is for requests that name none. Default:
	// one for all.
	Classes []Class `yaml:"classes"`
}

// Class is a share of the ranks, for requests that wait.
type Class struct {
	// name is what requests name, in nvext.router.class or the header x-stator-class. Required.
	Name string `yaml:"name"`
	// quantum is the class's share against others', in prompt tokens to compute at each of its
	// turns. Default 512.
	Quantum int `yaml:"quantum"`
	// order is fcfs or wspt. Default: the queue's.
	Order string `yaml:"order"`
	// requests bounds how many of this class may wait. Default 0: no bound but the queue's.
	Requests int `yaml:"requests"`
	// tokens bounds those of them that wait. Default 0: no bound but the queue's.
	Tokens int `yaml:"tokens"`
	// cachedTokens bounds what of that was cached. Default 0: no bound but the queue's.
	CachedTokens int `yaml:"cachedTokens"`
}

// Launch is a kind of engine an agent starts, and how many of it.
type Launch struct {
	// engine is sim (simulated), llamacpp (llama.cpp's server from the xllamacpp wheel), vllm
	// or exec (any command). Required.
	Engine string `yaml:"engine"`
	// count is the number of processes, 1 to 256. Default 1.
	Count int `yaml:"count"`
	// role is aggregated (default), prefill, decode or encode.
	Role string `yaml:"role"`
	// node is the node agent that starts them. Default: every agent that has no name, and
	// stator up.
	Node string `yaml:"node"`
	// command is the command line for exec; {port} and {name} are filled in.
	Command []string `yaml:"command"`
	// args are the engine's own settings. For sim: blocks (KV capacity, default 16384), speed
	// (time is divided by it, default 1), seed, maxSeqs, maxBatchedTokens, startup (a duration), tokenScale (each token takes the
	// time of this many).
	// For llamacpp: ctx (tokens, default 8192), slots (default 4), threads. For vllm: extra
	// command-line options by name.
	Args map[string]any `yaml:"args"`
	// taints are marks of these workers, such as "zone=a", that requests may require or prefer; see
	// docs/routing.md. Default: none.
	Taints []string `yaml:"taints"`
}

// Worker is an engine that someone else runs.
type Worker struct {
	// name is unique in the file and matches [a-z0-9-]+. Required.
	Name string `yaml:"name"`
	// address is ip:port of the engine's HTTP server. Required.
	Address string `yaml:"address"`
	// role is aggregated (default), prefill, decode or encode.
	Role string `yaml:"role"`
	// engine is vllm (default), sglang, trtllm, llamacpp or sim.
	Engine string `yaml:"engine"`
	// kvEvents is the ZMQ endpoint on which rank 0 publishes KV events, such as
	// "tcp://10.0.0.1:5557". "auto" asks the engine for those of all ranks, which vLLM answers.
	// "bind:tcp://*:5557" waits there for an engine that connects. TensorRT-LLM is asked at
	// "http://10.0.0.1:8000/kv_cache_events", by nobody else. Empty: overlap is predicted from
	// what was sent there.
	KVEvents string `yaml:"kvEvents"`
	// kvReplay is the ZMQ endpoint of their replay. Empty: a gap leaves the rank stale until the
	// engine restarts.
	KVReplay string `yaml:"kvReplay"`
	// ranks is the number of data-parallel ranks, 1 to 1024. Default 1.
	Ranks int `yaml:"ranks"`
	// weight is the worker's share of traffic while nobody picks, 1 to 1000. Default 1.
	Weight int `yaml:"weight"`
	// blocks is the KV capacity of a rank in blocks. Default 0, unknown.
	Blocks int `yaml:"blocks"`
	// taints are marks of the worker, such as "zone=a", that requests may require or prefer; see
	// docs/routing.md. Default: none.
	Taints []string `yaml:"taints"`
}

// Index bounds the memory of the KV cache index.
type Index struct {
	// maxBytes is the bound. Default 268435456 (256 MiB). At the bound the blocks that were used
	// least recently are forgotten, which lowers the hit rate and never names a wrong worker.
	MaxBytes int64 `yaml:"maxBytes"`
	// agentBytes bounds what an agent remembers of the caches of its own engines, so that a router
	// that starts late can be told. Default 268435456 (256 MiB). At the bound such a router learns
	// less. Snapshots on their way take as much again at most. Needs a restart.
	AgentBytes int64 `yaml:"agentBytes"`
	// driftRatio is how far the cached tokens that decisions promised and those that an engine
	// reports may lie apart, in shares of the prompt tokens, until what is known of the worker is
	// built up anew. Default 0.25. Lowering it finds smaller errors, and takes the moments between
	// a decision and its execution for errors. Needs a restart.
	DriftRatio float64 `yaml:"driftRatio"`
	// driftTokens is how many prompt tokens are compared at a time. Default 1000000. Needs a
	// restart.
	DriftTokens int64 `yaml:"driftTokens"`
}

// Prompts bounds the memory of prompts.
type Prompts struct {
	// memoryBytes bounds what is remembered of rendered prompts, so that the next turn of a
	// conversation costs only what is new in it. Default 67108864 (64 MiB), some 10 million tokens;
	// -1 turns it off. At the bound what was used least recently is forgotten, and costs its
	// tokenizing again. Needs a restart.
	MemoryBytes int64 `yaml:"memoryBytes"`
}

// Decisions says where the router's decisions are kept. The newest are always in memory.
type Decisions struct {
	// log is a file to which every decision is appended, and the end of its request, as a line of
	// JSON: "stator replay --decisions" plays it. It has hashes of prompts, no text and no token ids.
	// Default "": none. Needs a restart.
	Log string `yaml:"log"`
	// logBytes bounds the file. Default 268435456 (256 MiB). A full one is renamed, with ".1" after
	// its name, in the place of the one before. Needs a restart.
	LogBytes int64 `yaml:"logBytes"`
	// hashEvery is how many blocks of a prompt get one hash. Default 32. Lowering it tells more
	// exactly where prompts part, in longer lines. Needs a restart.
	HashEvery int `yaml:"hashEvery"`
}

// Planner holds targets.
type Planner struct {
	// ttft is the target for the time to first token. Default "0s": none.
	TTFT Duration `yaml:"ttft"`
	// itl is the target for the time between tokens. Default "0s": none.
	ITL Duration `yaml:"itl"`
	// maxGPUs bounds what the planner may ask for. Default 0: no bound.
	MaxGPUs int `yaml:"maxGPUs"`
}

// Bus says how the parts of one cluster find each other.
type Bus struct {
	// cluster names the fleet on the bus; it matches [a-z0-9-]+. Default "default".
	Cluster string `yaml:"cluster"`
	// url is the NATS server, such as "nats://127.0.0.1:4222". Empty: stator up embeds one, and
	// stator extproc takes its workers from this file.
	URL string `yaml:"url"`
	// leaseTTL is how long a worker stays in the fleet after its agent was last heard of.
	// Default "10s", at least "1s". Agents re-assert their leases every third of it.
	LeaseTTL Duration `yaml:"leaseTTL"`
}

// Duration is a time.Duration written as "250ms".
type Duration time.Duration

// Std returns the duration as the standard library has it.
func (d Duration) Std() time.Duration { return time.Duration(d) }

func (d Duration) String() string { return time.Duration(d).String() }
