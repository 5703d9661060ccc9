package config

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/route/cost"
)

var (
	policies = []string{"kv", "round-robin", "random", "power-of-two", "least-loaded", "direct", "session"}
	roles    = []string{"aggregated", "prefill", "decode", "encode"}
	launched = []string{"sim", "llamacpp", "vllm", "exec"}
	engines  = []string{"vllm", "sglang", "trtllm", "llamacpp", "sim", "exec"}

	nameRE = regexp.MustCompile(`^[a-z0-9-]{1,63}$`)
)

// Validate reports everything that is wrong, each problem with its path.
func (c *Config) Validate() error {
	var v validator
	v.is(c.APIVersion == APIVersion, "apiVersion", "must be %q", APIVersion)
	v.is(c.Kind == Kind, "kind", "must be %q", Kind)
	v.gateway(&c.Gateway)
	v.is(len(c.Models) > 0, "models", "must name at least one model")
	v.is(c.Index.MaxBytes >= 1<<20, "index.maxBytes", "must be at least 1048576")
	v.is(c.Index.AgentBytes >= 1<<20, "index.agentBytes", "must be at least 1048576")
	v.is(c.Index.DriftRatio > 0 && c.Index.DriftRatio <= 1, "index.driftRatio", "must lie above 0 and not above 1")
	v.is(c.Index.DriftTokens >= 1000, "index.driftTokens", "must be at least 1000")
	v.is(c.Prompts.MemoryBytes >= 1<<20 || c.Prompts.MemoryBytes == -1, "prompts.memoryBytes", "must be at least 1048576, or -1 for none")
	v.is(c.Decisions.LogBytes >= 1<<16, "decisions.logBytes", "must be at least 65536")
	v.is(c.Decisions.HashEvery >= 1 && c.Decisions.HashEvery <= 1<<16, "decisions.hashEvery", "must lie between 1 and 65536")
	v.is(nameRE.MatchString(c.Bus.Cluster), "bus.cluster", "must match [a-z0-9-]+ and have at most 63 characters")
	v.is(c.Bus.LeaseTTL >= 1e9, "bus.leaseTTL", "must be at least 1s")
	v.is(c.Planner.TTFT >= 0 && c.Planner.ITL >= 0 && c.Planner.MaxGPUs >= 0, "planner", "must not have negative values")
	names, workers := map[string]string{}, map[string]string{}
	for i := range c.Models {
		v.model(&c.Models[i], fmt.Sprintf("models[%d]", i), names, workers)
		wait := c.Models[i].Router.Queue.MaxWait
		v.is(wait == 0 || wait+waitMargin <= c.Gateway.IdleTimeout, fmt.Sprintf("models[%d].router.queue.maxWait", i),
			"is %s: it must be at least 10s less than gateway.idleTimeout, which is %s", wait, c.Gateway.IdleTimeout)
	}
	return errors.Join(v.errs...)
}

type validator struct{ errs []error }

func (v *validator) is(ok bool, path, format string, args ...any) {
	if !ok {
		v.errs = append(v.errs, fmt.Errorf("%s: %s", path, fmt.Sprintf(format, args...)))
	}
}

func (v *validator) oneOf(s string, of []string, path string) {
	v.is(slices.Contains(of, s), path, "is %q: use %s or %s", s, strings.Join(of[:len(of)-1], ", "), of[len(of)-1])
}

func (v *validator) gateway(g *Gateway) {
	_, err := netip.ParseAddrPort(g.Listen)
	v.is(err == nil, "gateway.listen", "is %q: use an IP and a port, such as 127.0.0.1:8080", g.Listen)
	v.is(g.MaxBodyBytes >= 1<<10 && g.MaxBodyBytes <= MaxBodyBytes, "gateway.maxBodyBytes", "must lie between 1024 and 1073741824")
	v.oneOf(g.UnknownPaths, []string{"route", "reject"}, "gateway.unknownPaths")
	v.oneOf(g.Hints, []string{"off", "nvext", "headers"}, "gateway.hints")
	v.is(g.DecisionTimeout >= 1e7, "gateway.decisionTimeout", "must be at least 10ms")
	v.is(g.IdleTimeout >= 1e9, "gateway.idleTimeout", "must be at least 1s")
}

func (v *validator) model(m *Model, path string, names, workers map[string]string) {
	v.is(m.Name != "", path+".name", "is required: it is what clients put into \"model\"")
	v.is(len(m.Name) <= 256, path+".name", "must have at most 256 characters")
	v.is(m.Path != "", path+".path", "is required: a folder with tokenizer.json, a .gguf file, or builtin:sim")
	v.is(m.BlockSize >= 1 && m.BlockSize <= 4096, path+".blockSize", "must lie between 1 and 4096")
	v.oneOf(m.Router.Policy, policies, path+".router.policy")
	v.is(m.Router.Temperature >= 0, path+".router.temperature", "must not be negative")
	_, err := m.Router.CostFunction()
	v.is(err == nil, path+".router.cost and weights", "%v", err)
	v.busy(&m.Router.Busy, path+".router.busy")
	v.queue(&m.Router, path+".router.queue")
	for _, n := range append([]string{m.Name}, m.Aliases...) {
		v.is(names[n] == "", path, "the name %q is taken by %s", n, names[n])
		names[n] = path
	}
	for i := range m.Launch {
		v.launch(&m.Launch[i], fmt.Sprintf("%s.launch[%d]", path, i))
	}
	for i := range m.Workers {
		at := fmt.Sprintf("%s.workers[%d]", path, i)
		v.worker(&m.Workers[i], at)
		v.is(workers[m.Workers[i].Name] == "", at+".name", "is taken by %s", workers[m.Workers[i].Name])
		workers[m.Workers[i].Name] = at
	}
}

// CostFunction is the function that the router's cost and weights name.
func (r *Router) CostFunction() (cost.Function, error) { return cost.New(r.Cost, r.Weights) }

// waitMargin is what Envoy's patience needs beyond a wait.
const waitMargin = Duration(10e9)

func (v *validator) busy(b *Busy, path string) {
	v.is(b.PrefillTokens >= 0, path+".prefillTokens", "must not be negative")
	v.is(b.MaxNumBatchedTokens >= 0, path+".maxNumBatchedTokens", "must not be negative")
	v.is(b.PrefillShare >= 0 && b.PrefillShare <= 1000, path+".prefillShare", "must lie between 0 and 1000")
	v.is(b.PrefillShare == 0 || b.MaxNumBatchedTokens > 0, path+".maxNumBatchedTokens", "is required with prefillShare: the engines' max_num_batched_tokens")
	v.is(b.KVUsage >= 0 && b.KVUsage <= 1, path+".kvUsage", "must lie between 0 and 1")
	v.is(b.KVRelease >= 0 && b.KVRelease <= b.KVUsage, path+".kvRelease", "must lie between 0 and kvUsage")
	v.is(b.Status == 429 || b.Status == 503 || b.Status == 529, path+".status", "is %d: use 429, 503 or 529", b.Status)
}

func (v *validator) queue(r *Router, path string) {
	q := &r.Queue
	bounded := r.Busy.PrefillTokens > 0 || r.Busy.PrefillShare > 0 || r.Busy.KVUsage > 0
	v.is(q.MaxWait >= 0 && (q.MaxWait == 0 || q.MaxWait >= 1e7), path+".maxWait", "must be 0s, or at least 10ms")
	v.is(q.MaxWait == 0 || bounded, path+".maxWait", "has no effect until router.busy says when a rank is busy")
	v.oneOf(q.Order, []string{"fcfs", "wspt"}, path+".order")
	v.is(q.Requests > 0 && q.Tokens >= 0 && q.CachedTokens >= 0, path, "must not have negative limits")
	seen := map[string]bool{}
	for i := range q.Classes {
		c, at := &q.Classes[i], fmt.Sprintf("%s.classes[%d]", path, i)
		v.is(nameRE.MatchString(c.Name), at+".name", "is %q: it must match [a-z0-9-]+ and have at most 63 characters", c.Name)
		v.is(!seen[c.Name], at+".name", "is there twice")
		seen[c.Name] = true
		v.is(c.Quantum >= 1 && c.Quantum <= 1<<30, at+".quantum", "must lie between 1 and 1073741824")
		v.oneOf(c.Order, []string{"fcfs", "wspt"}, at+".order")
		v.is(c.Requests >= 0 && c.Tokens >= 0 && c.CachedTokens >= 0, at, "must not have negative limits")
	}
}

func (v *validator) launch(l *Launch, path string) {
	v.taints(l.Taints, path+".taints")
	v.oneOf(l.Engine, launched, path+".engine")
	v.oneOf(l.Role, roles, path+".role")
	v.is(l.Count >= 1 && l.Count <= 256, path+".count", "must lie between 1 and 256")
	v.is(l.Engine != "exec" || len(l.Command) > 0, path+".command", "is required for engine exec")
}

func (v *validator) taints(names []string, path string) {
	_, err := fleet.NewTaints(names)
	v.is(err == nil, path, "%v", err)
}

func (v *validator) worker(w *Worker, path string) {
	v.is(nameRE.MatchString(w.Name), path+".name", "is %q: it must match [a-z0-9-]+ and have at most 63 characters", w.Name)
	_, err := netip.ParseAddrPort(w.Address)
	v.is(err == nil, path+".address", "is %q: use an IP and a port, such as 10.0.0.1:8000", w.Address)
	v.oneOf(w.Role, roles, path+".role")
	v.oneOf(w.Engine, engines, path+".engine")
	v.is(w.Ranks >= 1 && w.Ranks <= 1024, path+".ranks", "must lie between 1 and 1024")
	v.taints(w.Taints, path+".taints")
	v.is(w.Weight >= 1 && w.Weight <= 1000, path+".weight", "must lie between 1 and 1000")
	v.is(w.Blocks >= 0, path+".blocks", "must not be negative")
}
