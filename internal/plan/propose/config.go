package propose

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/stator-project/stator/internal/fleet"
)

// Deployment has the values that a configuration file needs besides a fleet.
type Deployment struct {
	// Model is the name that clients use, and Path where engines find it.
	Model, Path string
	// Engine is the kind of the engines: vllm, sglang, trtllm or sim. GPU is the kind of accelerator, empty if it is unknown.
	Engine, GPU string
	// Profile is the folder of a profile of engines with ProfileGPUs; empty for none. It is left out for a fleet with other engines.
	Profile     string
	ProfileGPUs int
	// Quantization is the engine's option of that name; empty for what the model's files have.
	Quantization string
	// Context is the longest prompt and answer that a client may send; 0 is the model's own limit.
	Context int
	// StartUp is the time that an engine takes to start.
	StartUp time.Duration
}

// blockSizes are the tokens of a KV block that each kind of engine has by default.
var blockSizes = map[string]int{"vllm": 16, "sglang": 64, "trtllm": 32, "sim": 16}

// spelled are the options of an engine: the number of GPUs, the requests at once, the tokens of a pass, the longest context, and the type
// of the KV cache.
type spelled struct{ gpus, seqs, batched, context, kvType, quantization string }

var spellings = map[string]spelled{
	"vllm":   {"tensor-parallel-size", "max-num-seqs", "max-num-batched-tokens", "max-model-len", "kv-cache-dtype", "quantization"},
	"sglang": {"tp-size", "max-running-requests", "chunked-prefill-size", "context-length", "kv-cache-dtype", "quantization"},
	"trtllm": {"tp-size", "max-batch-size", "max-num-tokens", "max-seq-len", "", ""},
	"sim":    {"", "maxNumSeqs", "maxNumBatchedTokens", "", "", ""},
}

// Engines returns the kinds of engines that a configuration can be written for, sorted.
func Engines() []string { return []string{"sglang", "sim", "trtllm", "vllm"} }

// Config returns a configuration file for a proposal, which "stator up" can use. The planner may change the replicas within the GPUs.
func (d *Deployment) Config(q Question, p *Proposal) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s, on %d GPUs: %.4g requests/s within the targets, as \"stator plan\" estimates.\n", p, p.GPUs, p.Rate)
	b.WriteString("apiVersion: stator.dev/v1alpha1\nkind: Stator\ngateway: {listen: \"127.0.0.1:8080\"}\nmodels:\n")
	fmt.Fprintf(&b, "- name: %q\n  path: %q\n  blockSize: %d\n", d.Model, d.Path, blockSizes[d.Engine])
	other := func(pool Pool) bool { return pool.Engine.GPUs != d.ProfileGPUs }
	if d.Profile != "" && !slices.ContainsFunc(p.Pools, other) {
		fmt.Fprintf(&b, "  profile: %q\n", d.Profile)
	}
	b.WriteString("  launch:\n")
	scales := false
	for i := range p.Pools {
		scales = d.launch(&b, q, p, i) || scales
	}

	fmt.Fprintf(&b, "planner:\n  algorithm: sla\n  ttft: %s\n  itl: %s\n  e2e: %s\n  quantile: %v\n", q.Targets.TTFT, q.Targets.ITL,
		q.Targets.E2E, q.quantile())
	fmt.Fprintf(&b, "  maxGPUs: %d\n", q.GPUs)
	if scales {
		b.WriteString("  connector: local\n")
	}
	return []byte(b.String())
}

// mostReplicas is the greatest count of a launch.
const mostReplicas = 256

// launch writes the engines of one role, and reports whether their number may change.
func (d *Deployment) launch(b *strings.Builder, q Question, p *Proposal, i int) (scales bool) {
	pool := &p.Pools[i]
	left := q.GPUs
	for k := range p.Pools {
		if k != i {
			left -= p.Pools[k].Engine.GPUs // the other role needs one engine
		}
	}
	most := min(mostReplicas, max(pool.Replicas, left/max(1, pool.Engine.GPUs)))
	count := min(pool.Replicas, most)

	fmt.Fprintf(b, "  - engine: %s\n", d.Engine)
	if pool.Role != fleet.Aggregated {
		fmt.Fprintf(b, "    role: %s\n", pool.Role)
	}
	fmt.Fprintf(b, "    count: %d\n    min: 1\n    max: %d\n", count, most)
	if d.GPU != "" {
		fmt.Fprintf(b, "    gpu: %q\n", d.GPU)
	}
	fmt.Fprintf(b, "    startUp: %s\n", d.StartUp)
	b.WriteString("    args:\n")
	for _, line := range d.arguments(&q, pool) {
		fmt.Fprintf(b, "      %s\n", line)
	}
	return most > 1
}

// arguments returns the settings of a pool's engines, as lines of YAML, sorted.
func (d *Deployment) arguments(q *Question, pool *Pool) []string {
	s := spellings[d.Engine]
	var out []string
	add := func(name string, value any) {
		if name != "" {
			out = append(out, fmt.Sprintf("%s: %v", name, value))
		}
	}
	add(s.gpus, pool.Engine.GPUs)
	add(s.seqs, q.Seqs(pool))
	add(s.batched, max(pool.Engine.MaxBatchedTokens, leastBatched))
	if context := d.context(pool); context > 0 {
		add(s.context, context)
	}
	if d.Quantization != "" {
		add(s.quantization, d.Quantization)
	}

	switch {
	case d.Engine == "sim":
		add("blocks", max(1, pool.Engine.KVTokens/blockSizes[d.Engine]))
	case d.Engine == "trtllm" && pool.Engine.SmallKV:
		add("options", "{kv_cache_config: {dtype: fp8}}")
	case d.Engine == "sglang" && pool.Engine.SmallKV:
		add(s.kvType, "fp8_e4m3")
	case pool.Engine.SmallKV:
		add(s.kvType, "fp8")
	}
	if d.Engine == "vllm" && pool.Role != fleet.Aggregated {
		add("kv-transfer-config", "{kv_connector: NixlConnector, kv_role: kv_both}")
	}
	slices.Sort(out)
	return out
}

// leastBatched is the tokens of a pass if an engine's are not known.
const leastBatched = 8192

// context returns the longest context that an engine's cache can hold; 0 if it holds all that the model allows.
func (d *Deployment) context(pool *Pool) int {
	const share = 0.9 // of the cache for one request
	held := int(share * float64(pool.Engine.KVTokens))
	if d.Context > 0 && (held == 0 || d.Context < held) || held == 0 {
		return 0
	}
	return held / 1024 * 1024
}
