package engines

import (
	"slices"
	"strconv"
	"strings"

	"github.com/stator-project/stator/internal/fleet"
)

// Kind has the facts about one kind of engine.
type Kind struct {
	// Name is the kind in configurations and leases.
	Name string
	// Page is the name of its page in docs/engines, without the extension; empty if it has none.
	Page string

	// Dialect is the format of its KV events.
	Dialect Dialect
	// Pages are the pages that its HTTP server has beside OpenAI's.
	Pages Pages
	// Metrics are the names of its metrics.
	Metrics Metrics
	// HealthOfModel means that it is asked for its health at [fleet.ReadyPath] of the model, because it answers 200 at
	// [fleet.DefaultHealthPath] while nothing serves the model.
	HealthOfModel bool
	// AdapterPath is the path at which it loads LoRA adapters, with vLLM's body; empty if it cannot. A kind that has one lists
	// its adapters among its models.
	AdapterPath string

	// Transfer is the way that its KV caches take from prefill to decode workers, unless the configuration names another.
	Transfer fleet.Transfer
	// Connectors means that it takes vLLM's --kv-transfer-config, which decides how it transfers KV caches, and that its metrics
	// show the connector.
	Connectors bool

	// VLLMRules means that it refuses the requests that vLLM refuses because of their form, so that routers may refuse them.
	VLLMRules bool
	// AnyModelName means that it serves requests for any name of a model.
	AnyModelName bool
	// RankIgnored are the APIs, by the names of openai.Endpoint, at which an engine with several data-parallel ranks behind its address
	// ignores the rank that a request names, and chooses one by itself.
	RankIgnored []string
	// OwnHashes means that every process hashes blocks with another seed, so hashes of two engines differ.
	OwnHashes bool

	// TokenIDs means that its streams have the ids of their tokens with vLLM's return_token_ids, and that it accepts these as a prompt.
	TokenIDs bool

	// Plan are the options that a plan sets.
	Plan Plan
	// Launch describes how agents start it.
	Launch Launch
	// Remedies are the doctor's advice about its options.
	Remedies Remedies
}

// Dialect is the format of an engine's KV events. Package kvsource has the decoder of each.
type Dialect uint8

// The dialects.
const (
	_            Dialect = iota
	NoEvents             // the engine publishes none
	VLLMEvents           // vLLM's, over ZMQ; also of engines whose events are not known
	SGLangEvents         // SGLang's, over ZMQ
	TRTLLMEvents         // TensorRT-LLM's, which are polled over HTTP; its bridges to ZMQ publish vLLM's
)

// Pages are the pages of an engine's HTTP server, beside OpenAI's, which the doctor asks for options and tokens.
type Pages uint8

// The sets of pages.
const (
	_           Pages = iota
	OpenAIPages       // no others
	VLLMPages         // /version, /tokenize
	SGLangPages       // /server_info with all options, /tokenize
	TRTLLMPages       // /version, /prometheus/metrics
	LlamaPages        // /props, and a /tokenize that takes texts alone
	DynamoPages       // /v1/models/NAME/ready with the workers of a frontend
)

// Metrics are the names of the metrics from which an engine's load is read. An empty name means that the engine has no such
// metric. Without Running the load is not read.
type Metrics struct {
	// Running and Waiting count requests, and Usage is the share of the KV cache in use. RunningHasWaiting means that Running
	// counts the waiting requests too.
	Running, Waiting, Usage string
	RunningHasWaiting       bool
	// Queries and Hits count the prompt tokens that were looked up in the cache, and those found there. ExternalHits are found by
	// KV connectors, which vLLM counts apart.
	Queries, Hits, ExternalHits string
	// Gaps and GapTime are the number and the sum of the times between tokens of answers.
	Gaps, GapTime string
	// Config is a metric whose labels describe the KV cache, and Capacity one with its size in tokens. Blocks and BlockSize are
	// two whose product is that size.
	Config, Capacity, Blocks, BlockSize string
	// StepTokens is the mean number of tokens of a step with speculative decoding. Drafts and Accepted are two counters from
	// which it follows.
	StepTokens, Drafts, Accepted string
	// SleepState has a sample with the label sleep_state="awake", which is 0 while the engine sleeps: its cache is empty then.
	SleepState string
	// Path is the path of the page; empty is /metrics.
	Path string
	// Marker is a metric that /metrics has from the start of the engine unless its metrics are off; empty if none is known.
	Marker string
}

// Plan has the options by which "stator plan" writes the configuration of an engine: their names in launch[].args, or a whole
// line of YAML. An empty option is none. Without Seqs no configuration is written for the kind.
type Plan struct {
	// BlockSize is the number of tokens of a KV block that the engine has by default.
	BlockSize int
	// GPUs is the option for the number of GPUs, Seqs for the requests at once, Batched for the tokens of a pass, and Context for
	// the longest context. Blocks is the option for the size of the KV cache in blocks.
	GPUs, Seqs, Batched, Context, Blocks string
	// Quantization and KVType are the options for the types of the weights and of the KV cache. An engine with Quantization can
	// make 16-bit weights smaller while it loads them.
	Quantization, KVType string
	// SmallKV is the line that gives the KV cache 8 bits a value, and Half the line of an engine that prefills or decodes.
	SmallKV, Half string
}

// Shape is the shape of a command line. Package workeragent/engine builds each.
type Shape uint8

// The shapes.
const (
	NotLaunched Shape = iota // agents cannot start the engine
	Simulated                // of the simulated engine, which is part of this program
	Script                   // of a script around the engine, for llama.cpp
	ByOptions                // Args of [Launch], and then an option for every argument of launch[].args
	UserCommand              // of launch[].command
)

// Launch describes how agents start a kind of engine.
type Launch struct {
	Shape Shape
	// Module is the Python package that has the engine; empty if no interpreter runs it.
	Module string

	// Args are the arguments that the agent sets, in a [ByOptions] command line, and RoleArgs follow them for an engine that
	// prefills or decodes. The agent replaces
	//
	//	{path} {model}         the folder of the model, and the name that clients use
	//	{aliases}              further names, an argument for each
	//	{host} {port}          of the HTTP server
	//	{blockSize}            the tokens of a KV block
	//	{endpoint} {replay}    the ZMQ endpoints of KV events and their replay, in quotation marks as texts of JSON
	//	{file}                 the path of the file with OptionsInFile
	//	{role} {transferPort}  the role, and the port by which others fetch KV caches
	Args, RoleArgs []string
	// Env are variables of the environment, as NAME=value.
	Env []string
	// Refused are the options that must not be in launch[].args, with the reason or a replacement. A later option of a command
	// line replaces an earlier one, so these would change the facts that the agent publishes about the worker.
	Refused map[string]string
	// Underscores means that the names of options have underscores instead of hyphens.
	Underscores bool
	// OptionsInFile means that launch[].args.options becomes the file of TensorRT-LLM's --extra_llm_api_options.
	OptionsInFile bool

	// Ranks are the options for the number of data-parallel ranks. SharesGPUs is an option with which ranks use the GPUs of tensor
	// parallelism.
	Ranks      []string
	SharesGPUs string
	// GPUs are the options whose product is the number of GPUs, each with the shortest beginning of the name that the engine takes
	// for it. Nil means that the use of GPUs is not known.
	GPUs map[string]string
}

// Remedies are the texts by which the doctor advises to change an engine's options.
type Remedies struct {
	// Caching turns the prefix cache on, Events the KV events, Replay their replay, and Metrics the metrics.
	Caching, Events, Replay, Metrics string
	// BlockSize sets the tokens of a KV block, with %d for the number.
	BlockSize string
	// Socket explains an event socket that cannot be connected to, unless the option is --kv-events-config.
	Socket string
}

// all has every kind, in the order of messages.
var all = []*Kind{Sim, LlamaCPP, VLLM, SGLang, TRTLLM, Dynamo, Exec}

// All returns every kind, in the order of messages.
func All() []*Kind { return slices.Clone(all) }

// Names returns the names of the kinds for which is returns true, in the order of messages.
func Names(is func(*Kind) bool) (names []string) {
	for _, k := range all {
		if is(k) {
			names = append(names, k.Name)
		}
	}
	return names
}

// Choices lists the kinds for which is returns true, two or more, as a message does: "sim, vllm or exec".
func Choices(is func(*Kind) bool) string {
	names := Names(is)
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " or " + names[last]
}

// Named returns the kind of that name. It is nil and false for an unknown name.
func Named(name string) (*Kind, bool) {
	i := slices.IndexFunc(all, func(k *Kind) bool { return k.Name == name })
	if i < 0 {
		return nil, false
	}
	return all[i], true
}

// Of returns the kind of that name. An unknown name, which the lease of a newer agent may have, counts as [Exec]: a server with
// OpenAI's pages, of which no more is known.
func Of(name string) *Kind {
	if k, ok := Named(name); ok {
		return k
	}
	return Exec
}

// IgnoresRank reports whether an engine of the kind with several ranks chooses the rank of requests to an API by itself.
func (k *Kind) IgnoresRank(api string) bool { return slices.Contains(k.RankIgnored, api) }

// AnyIgnoresRank reports whether any kind chooses the rank of requests to an API by itself.
func AnyIgnoresRank(api string) bool {
	return slices.ContainsFunc(all, func(k *Kind) bool { return k.IgnoresRank(api) })
}

// IsKind returns true: it is the filter for all kinds.
func (k *Kind) IsKind() bool { return true }

// IsLaunched reports whether agents can start it.
func (k *Kind) IsLaunched() bool { return k.Launch.Shape != NotLaunched }

// RunsInPython reports whether launch[].python runs it.
func (k *Kind) RunsInPython() bool { return k.Launch.Module != "" }

// IsPlanned reports whether "stator plan" writes configurations for it.
func (k *Kind) IsPlanned() bool { return k.Plan.Seqs != "" }

// Transfers reports whether it can transfer KV caches without an option of the configuration.
func (k *Kind) Transfers() bool { return k.Transfer != fleet.NoTransfer }

// HealthPath returns the path at which it is asked for its health, unless the configuration names another.
func (k *Kind) HealthPath(model string) string {
	if k.HealthOfModel {
		return fleet.ReadyPath(model)
	}
	return fleet.DefaultHealthPath
}

// PlanOptions returns one option of [Plan] as each kind spells it. Kinds without the option are left out.
func PlanOptions(option func(*Plan) string) (names []string) {
	for _, k := range all {
		if name := option(&k.Plan); name != "" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// SeqsOptions are the options for the requests that run at once, of all kinds.
var SeqsOptions = PlanOptions(func(p *Plan) string { return p.Seqs })

// MaxRequests returns the number of requests that a rank runs at once, if the option is the one for it and its value is such a number; else
// 0.
func MaxRequests(option, value string) int {
	if !slices.Contains(SeqsOptions, OptionName(option)) {
		return 0
	}
	n, err := strconv.Atoi(value)
	if err != nil || n < 1 || n > fleet.MaxSlots {
		return 0
	}
	return n
}

// OptionName returns an option as the help of vLLM and SGLang spells it.
func OptionName(key string) string {
	return strings.ReplaceAll(strings.TrimPrefix(key, "--"), "_", "-")
}
