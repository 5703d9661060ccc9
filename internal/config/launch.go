package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/stator-project/stator/internal/engines"
	"github.com/stator-project/stator/internal/fleet"
)

// Launch is a kind of engine that an agent starts, and how many of it.
type Launch struct {
	// Engine is the kind of engine: sim (simulated), llamacpp (llama.cpp's server from the xllamacpp wheel), vllm, sglang, trtllm
	// (TensorRT-LLM's trtllm-serve) or exec (any command).
	Engine string `yaml:"engine" default:"required"`
	// Count is the number of processes, 1 to 256. With a planner that scales, it is their number at the start.
	Count int `yaml:"count" reload:"live"`
	// Min and Max bound the number of processes that a plan may ask for here. Equal bounds mean a fixed number.
	Min int `yaml:"min" default:"0 with idleAfter, else 1, or count if max is not set" reload:"live"`
	// Max is at most 256.
	Max int `yaml:"max" default:"count" reload:"live"`
	// GPU is the kind of accelerator, such as "H200". Without a profile the planner estimates the engines' speed from its data sheet and
	// from the model's files. See "stator plan --help" for the names.
	GPU string `yaml:"gpu" default:"none" reload:"live"`
	// StartUp is the time from an engine's start until it is ready, as first assumed. Starts that are observed replace it.
	StartUp Duration `yaml:"startUp" reload:"live"`
	// Role is the part of a request that these workers serve: "aggregated" is all of it. Of a model with "prefill" and "decode"
	// workers, one computes the prompt and another one fetches its KV cache and decodes: see docs/disaggregation.md.
	Role string `yaml:"role"`
	// Target is the object of Kubernetes whose replicas these workers are, with planner.connector kubernetes: "deployment/NAME",
	// "statefulset/NAME", "leaderworkerset/NAME", or "GROUP/VERSION/KIND/NAME" of any other kind with the subresource scale. It is in the
	// namespace of the pods. No agent starts these workers; the planner takes their GPUs and their speed from engine, args and gpu. Count
	// is their number before the first plan.
	Target string `yaml:"target" default:"agents start them" reload:"the planner"`
	// Node is the node agent that starts them.
	Node string `yaml:"node" default:"agents without a name, and stator up"`
	// Command is the command line for exec. {host}, {port}, {name} and {model} are filled in: the engine must
	// listen on that host and port.
	Command []string `yaml:"command"`
	// Args are the engine's settings. For sim: blocks (KV capacity, default 16384), engineSpeedup (time is divided by it, default
	// 1), seed, maxNumSeqs, maxNumBatchedTokens, startup (a duration), streamInterval (tokens in one write of a stream, default 1),
	// answerTokens (mean length of answers, if max_tokens does not end them before), thinkTokens (tokens of an answer that are
	// thinking), tlsCert, tlsKey and tlsClientCA (files of its HTTP server), tokenScale (each token lasts as long as this many), transfer
	// (of KV caches: nixl, p2p, bootstrap or context, which are the handshakes of vLLM, SGLang and TensorRT-LLM; default nixl with a
	// role; without one only p2p is possible). For llamacpp: ctx (tokens, default 8192), slots (default 4), threads. For vllm,
	// sglang and trtllm: command-line options by name, such as max-model-len, without the options that Stator sets; a map or a list
	// becomes JSON. With data-parallel-size of vllm, and dp-size or attn-dp-size of sglang, a worker has so many ranks. For trtllm,
	// the key options is a map that becomes the file of --extra_llm_api_options.
	Args map[string]any `yaml:"args"`
	// Python is the interpreter that runs llamacpp, vllm, sglang and trtllm: a path, or a name in PATH. The engine's package must be
	// installed for it.
	Python string `yaml:"python" default:"the virtual environment .venv beside the program's folder, else python3"`
	// Env are environment variables of these engines, beside the agent's variables for paths, locale, proxies, GPUs and
	// engines.
	Env map[string]string `yaml:"env"`
	// Dir is the folder in which these engines run, and to which relative paths in args and command refer.
	Dir string `yaml:"dir" default:"the folder of the agent"`
	// GPUs are the devices of these engines, as CUDA_VISIBLE_DEVICES has them: indexes in the order of the PCI bus, or UUIDs.
	// Each of count gets as many as it needs, in this order. For vllm that is the product of the options tensor-parallel-size,
	// pipeline-parallel-size and data-parallel-size, for sglang of tp-size, pp-size and dp-size, and for trtllm of tp_size,
	// pp_size and cp_size. The list must have exactly as many for all of count; engines share a device that is there twice.
	// Without the list, these engines get devices that no other launch lists: of the agent's CUDA_VISIBLE_DEVICES, or else of
	// the host. If there are none, nothing is set.
	GPUs []any `yaml:"gpus"`
	// Survive has these engines run on when their agent ends or is killed. The next agent with the same
	// --state-dir adopts them, unless the launch has changed. `stator up` stops them all the same.
	Survive bool `yaml:"survive" reload:"agents"`
	// Taints are marks of these workers, such as "long-context", that requests may require or prefer: see docs/routing.md. The taints
	// "zone=…", "rack=…" and "nvlink=…" name the place of the workers, by which the times of transfers are learned and pairs of
	// workers chosen: see docs/disaggregation.md.
	Taints []string `yaml:"taints"`
}

// Devices returns the GPUs as texts: a file has indexes as numbers, and UUIDs as strings.
func (l *Launch) Devices() []string {
	var all []string
	for _, id := range l.GPUs {
		all = append(all, fmt.Sprint(id))
	}
	return all
}

// SetCount sets the number of processes. Bounds that the file does not set follow it.
func (l *Launch) SetCount(n int) {
	fixed := l.Min == l.Max
	l.Count = n
	if fixed {
		l.Min = n
	}
	l.Min = min(l.Min, n)
	l.Max = max(l.Max, n)
	if fixed {
		l.Max = n
	}
}

func (v *validator) launch(l *Launch, path string) {
	v.taints(l.Taints, path+".taints")
	v.engine(l.Engine, (*engines.Kind).IsLaunched, path)
	v.is(l.Node == "" || fleet.ValidName(l.Node), path+".node", "is %q: it must match [a-z0-9-]+ and have at most 63 characters", l.Node)
	v.role(l.Role, path)
	if l.Target == "" { // otherwise the pods have the engine's arguments
		v.transfers(l, path)
	}
	v.is(l.Count >= 1 && l.Count <= maxCount, path+".count", "must lie between 1 and %d", maxCount)
	v.scale(l, path)
	v.is(l.Engine != engines.Exec.Name || len(l.Command) > 0, path+".command", "is required for engine exec")
	v.process(l, path)
}

// transfers checks that an engine that prefills or decodes can transfer KV caches.
func (v *validator) transfers(l *Launch, path string) {
	kind := engines.Of(l.Engine)
	v.is(l.Role == fleet.Aggregated.String() || kind.Transfers(), path+".role",
		"is %s, which engine %s cannot have: it transfers no KV caches", l.Role, l.Engine)
	if kind.Connectors {
		v.connectors(l, path)
	}
}

// process checks the settings of a launch that its process gets beside its command line.
func (v *validator) process(l *Launch, path string) {
	v.is(l.Python == "" || engines.Of(l.Engine).RunsInPython(), path+".python", "has no effect for engine %s: it is for %s",
		l.Engine, strings.Join(engines.Names((*engines.Kind).RunsInPython), ", "))
	for _, name := range slices.Sorted(maps.Keys(l.Env)) {
		v.is(name != "" && !strings.ContainsAny(name, "= \x00"), path+".env", "has the name %q: write NAME: value", name)
		v.is(!strings.Contains(l.Env[name], "\x00"), path+".env."+name, "has a zero byte")
	}

	_, sets := l.Env["CUDA_VISIBLE_DEVICES"]
	v.is(!sets || len(l.GPUs) == 0, path+".env.CUDA_VISIBLE_DEVICES", "is set by gpus: remove one of them")
	v.is(len(l.GPUs) == 0 || l.Engine != engines.Sim.Name, path+".gpus", "has no effect for engine sim")
	for i, id := range l.Devices() {
		v.is(id != "" && !strings.ContainsAny(id, ", \t\n\x00"), fmt.Sprintf("%s.gpus[%d]", path, i),
			"is %q: use an index such as 0, or a UUID", id)
	}
}
