package propose

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/stator-project/stator/internal/engines"
	"github.com/stator-project/stator/internal/fleet"
)

// Deployment has the values that a configuration file needs besides a fleet.
type Deployment struct {
	// Model is the name that clients use, and Path where engines find it.
	Model, Path string
	// Engine is the kind of the engines, which [Engines] has. GPU is the kind of accelerator, empty if it is unknown.
	Engine, GPU string
	// Profile is the folder of a profile of engines with ProfileGPUs; empty for none. It is left out for a fleet with other engines.
	Profile     string
	ProfileGPUs int
	// Quantization is the engine's option of that name; empty for the quantization in the model's files.
	Quantization string
	// Context is the longest prompt and answer that a client may send; 0 is the model's own limit.
	Context int
	// StartUp is the time that an engine takes to start.
	StartUp time.Duration
	// Target returns the object of Kubernetes whose replicas the engines of a role are, as the configuration names it; nil for engines that
	// agents start.
	Target func(role fleet.Role) string
}

// Engines returns the kinds of engines that a configuration can be written for, sorted.
func Engines() []string {
	return slices.Sorted(slices.Values(engines.Names((*engines.Kind).IsPlanned)))
}

// Config returns a configuration file for a proposal, which "stator up" can use. The planner may change the replicas within the GPUs.
func (d *Deployment) Config(q Question, p *Proposal) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s, on %d GPUs: %.4g requests/s within the targets, as \"stator plan\" estimates.\n", p, p.GPUs, p.Rate)
	b.WriteString("apiVersion: stator.dev/v1alpha1\nkind: Stator\ngateway: {listen: \"127.0.0.1:8080\"}\nmodels:\n")
	fmt.Fprintf(&b, "- name: %q\n  path: %q\n  blockSize: %d\n", d.Model, d.Path, engines.Of(d.Engine).Plan.BlockSize)
	other := func(pool Pool) bool { return pool.Engine.GPUs != d.ProfileGPUs }
	if d.Profile != "" && !slices.ContainsFunc(p.Pools, other) {
		fmt.Fprintf(&b, "  profile: %q\n", d.Profile)
	}
	b.WriteString("  launch:\n")
	scales := false
	for i := range p.Pools {
		scales = scales || mostOf(q, p, i) > 1
	}
	for i := range p.Pools {
		d.launch(&b, q, p, i, scales && d.Target != nil)
	}

	fmt.Fprintf(&b, "planner:\n  algorithm: sla\n  ttft: %s\n  itl: %s\n  e2e: %s\n  quantile: %v\n", q.Targets.TTFT, q.Targets.ITL,
		q.Targets.E2E, q.quantile())
	fmt.Fprintf(&b, "  maxGPUs: %d\n", q.GPUs)
	switch {
	case scales && d.Target != nil:
		b.WriteString("  connector: kubernetes\n")
	case scales:
		b.WriteString("  connector: local\n")
	}
	return []byte(b.String())
}

// mostReplicas is the greatest count of a launch.
const mostReplicas = 256

// mostOf returns the greatest count of a role's engines, beside one engine of the other role.
func mostOf(q Question, p *Proposal, i int) int {
	pool := &p.Pools[i]
	left := q.GPUs
	for k := range p.Pools {
		if k != i {
			left -= p.Pools[k].Engine.GPUs // the other role needs one engine
		}
	}
	return min(mostReplicas, max(pool.Replicas, left/max(1, pool.Engine.GPUs)))
}

// launch writes the engines of one role, and the object whose replicas they are if they have a target.
func (d *Deployment) launch(b *strings.Builder, q Question, p *Proposal, i int, target bool) {
	pool := &p.Pools[i]
	most := mostOf(q, p, i)
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
	if target {
		fmt.Fprintf(b, "    target: %q\n", d.Target(pool.Role))
	}
	b.WriteString("    args:\n")
	for _, line := range d.arguments(&q, pool) {
		fmt.Fprintf(b, "      %s\n", line)
	}
}

// arguments returns the settings of a pool's engines, as lines of YAML, sorted.
func (d *Deployment) arguments(q *Question, pool *Pool) []string {
	s := &engines.Of(d.Engine).Plan
	var out []string
	add := func(name string, value any) {
		if name != "" {
			out = append(out, fmt.Sprintf("%s: %v", name, value))
		}
	}

	add(s.GPUs, pool.Engine.GPUs)
	add(s.Seqs, q.Seqs(pool))
	add(s.Batched, max(pool.Engine.MaxBatchedTokens, leastBatched))
	add(s.Blocks, max(1, pool.Engine.KVTokens/max(1, s.BlockSize)))
	if context := d.context(pool); context > 0 {
		add(s.Context, context)
	}
	if d.Quantization != "" {
		add(s.Quantization, d.Quantization)
	}

	if s.SmallKV != "" && pool.Engine.SmallKV {
		out = append(out, s.SmallKV)
	}
	if s.Half != "" && pool.Role != fleet.Aggregated {
		out = append(out, s.Half)
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
