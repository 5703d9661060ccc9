package config

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/stator-project/stator/internal/engines"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/route"
	"github.com/stator-project/stator/internal/route/pick"
	"github.com/stator-project/stator/internal/route/queue"
	"github.com/stator-project/stator/internal/route/serving"
	"github.com/stator-project/stator/internal/route/sessionid"
)

// The values of gateway.hints and gateway.hintsFrom.
const (
	hintsOff     = "off"
	hintsBody    = "nvext"
	hintsHeaders = "headers"

	hintsFromTrusted  = "trusted"
	hintsFromEveryone = "everyone"
)

// The values of gateway.affinityFilter.
const (
	affinityOff  = "off"
	affinityWasm = "wasm"
)

// Bounds of values whose packages have none.
const (
	minIndexBytes   = 1 << 20
	minDriftTokens  = 1000
	minMemoryBytes  = 1 << 20
	noMemory        = -1 // prompts.memoryBytes: off
	minLogBytes     = 1 << 16
	maxHashEvery    = 1 << 16
	minLease        = Duration(time.Second)
	minBodyBytes    = 1 << 10
	maxBodiesBytes  = 1 << 40
	minHeapBytes    = 64 << 20 // an Envoy without requests has less
	minDecision     = Duration(10 * time.Millisecond)
	minIdle         = Duration(time.Second)
	minWait         = Duration(10 * time.Millisecond)
	maxModelName    = 256
	maxAdapterPath  = 4096
	maxBlockSize    = 4096
	minCanary       = Duration(time.Second)
	maxContext      = fleet.MaxContext
	maxMigrations   = 100
	maxPrefillShare = 1000
	maxCount        = 256
	maxExpected     = 1024 // as many as routers keep

	// waitMargin is the time for which Envoy must keep a request beyond the longest wait: the answer that
	// ends the wait has to reach it before.
	waitMargin = Duration(10 * time.Second)
)

// Validate reports everything that is wrong, each problem with its path.
func (c *Config) Validate() error {
	var v validator
	v.is(c.APIVersion == APIVersion, "apiVersion", "must be %q", APIVersion)
	v.is(c.Kind == Kind, "kind", "must be %q", Kind)
	v.gateway(&c.Gateway)
	v.is(len(c.Models) <= 1 || !c.Gateway.FiltersAffinity(), "gateway.affinityFilter",
		"has no effect with several models: Envoy refuses requests without a decision")
	v.is(!c.FailsClosed() || !c.Gateway.FiltersAffinity(), "gateway.affinityFilter",
		"has no effect with transfers of KV caches or gateway.tenantHeader: Envoy refuses requests without a decision")
	v.is(!c.Gateway.Sidecars || !c.Migrates(), "gateway.sidecars",
		"cannot be true with models[].migration: sidecars get requests from Envoy alone")
	v.is(c.Index.MaxBytes >= minIndexBytes, "index.maxBytes", "must be at least %d", minIndexBytes)
	v.is(c.Index.DriftTokens >= minDriftTokens, "index.driftTokens", "must be at least %d", minDriftTokens)
	v.is(c.Prompts.MemoryBytes >= minMemoryBytes || c.Prompts.MemoryBytes == noMemory, "prompts.memoryBytes",
		"must be at least %d, or %d for none", minMemoryBytes, noMemory)
	v.is(c.Decisions.LogBytes >= minLogBytes, "decisions.logBytes", "must be at least %d", minLogBytes)
	v.is(c.Decisions.LinesPerSecond >= 0 && c.Decisions.LinesPerSecond <= 1000, "decisions.linesPerSecond", "must lie between 0 and 1000")
	v.is(c.Decisions.HashEvery >= 1 && c.Decisions.HashEvery <= maxHashEvery, "decisions.hashEvery",
		"must lie between 1 and %d", maxHashEvery)
	v.is(fleet.ValidName(c.Bus.Cluster), "bus.cluster", "must match [a-z0-9-]+ and have at most 63 characters")
	v.is(c.Bus.LeaseTTL >= minLease, "bus.leaseTTL", "must be at least %s", minLease)

	v.tracing(&c.Tracing)
	v.bus(&c.Bus)
	v.engineTLS(&c.EngineTLS)
	v.planner(&c.Planner)
	for key, n := range map[string]int{
		"routers": c.Expected.Routers, "controlPlanes": c.Expected.ControlPlanes,
		"planners": c.Expected.Planners, "stores": c.Expected.Stores,
	} {
		v.is(n >= 0 && n <= maxExpected, "expected."+key, "must lie between 0 and %d", maxExpected)
	}

	names, workers := map[string]string{}, map[string]string{}
	addresses, emitters := map[string]string{}, map[string]string{}
	for i := range c.Models {
		v.model(&c.Models[i], fmt.Sprintf("models[%d]", i), names, workers, addresses)
		v.emitters(&c.Models[i], fmt.Sprintf("models[%d].emitters", i), emitters)
		wait, hold := c.Models[i].Router.Queue.MaxWait, c.Models[i].Holds()
		v.is(hold == 0 || hold+waitMargin <= c.Gateway.IdleTimeout, fmt.Sprintf("models[%d].router.queue.hold", i),
			"is %s: it must be at least %s less than gateway.idleTimeout, which is %s", hold, waitMargin, c.Gateway.IdleTimeout)
		if c.Models[i].isSplit() {
			longest := max(wait, hold) + Duration(route.PrefillTimeout)
			v.is(longest+waitMargin <= c.Gateway.IdleTimeout, "gateway.idleTimeout",
				"is %s: models[%d] has prefill workers, so it must be at least %s", c.Gateway.IdleTimeout, i, longest+waitMargin)
			continue
		}
		v.is(wait == 0 || wait+waitMargin <= c.Gateway.IdleTimeout, fmt.Sprintf("models[%d].router.queue.maxWait", i),
			"is %s: it must be at least %s less than gateway.idleTimeout, which is %s", wait, waitMargin, c.Gateway.IdleTimeout)
	}
	v.checkScaled(c)
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

// engine checks the name of a kind of engine for which is returns true.
func (v *validator) engine(name string, is func(*engines.Kind) bool, path string) {
	kind, ok := engines.Named(name)
	v.is(ok && is(kind), path+".engine", "is %q: use %s", name, engines.Choices(is))
}

func (v *validator) gateway(g *Gateway) {
	_, err := netip.ParseAddrPort(g.Listen)
	v.is(err == nil, "gateway.listen", "is %q: use an IP and a port, such as 127.0.0.1:8080", g.Listen)
	v.is(g.DecisionTimeout >= minDecision, "gateway.decisionTimeout", "must be at least %s", minDecision)
	v.is(g.IdleTimeout >= minIdle, "gateway.idleTimeout", "must be at least %s", minIdle)
	attempt := g.AttemptIdleTimeout
	v.is(attempt == 0 || g.IdleTimeout < minIdle || attempt >= minIdle && attempt <= g.IdleTimeout,
		"gateway.attemptIdleTimeout", "must be 0s, or lie between %s and gateway.idleTimeout, which is %s", minIdle, g.IdleTimeout)
	v.is(g.MaxBodyBytes >= minBodyBytes && g.MaxBodyBytes <= MaxBodyBytes, "gateway.maxBodyBytes",
		"must lie between %d and %d", minBodyBytes, MaxBodyBytes)
	v.is(g.MaxBodiesBytes >= g.MaxBodyBytes && g.MaxBodiesBytes <= maxBodiesBytes, "gateway.maxBodiesBytes",
		"must lie between gateway.maxBodyBytes, which is %d, and %d", g.MaxBodyBytes, int64(maxBodiesBytes))
	for i, p := range g.PassPaths {
		path, _ := strings.CutSuffix(p, "/*")
		v.is(strings.HasPrefix(p, "/") && !strings.ContainsAny(path, "*?%\\ "), fmt.Sprintf("gateway.passPaths[%d]", i),
			"is %q: it must begin with a slash, and have a * only as the last of its parts, such as /v1/audio/*", p)
	}

	v.edge(g)
	v.auth(&g.Auth)
	v.limits(g)
	v.is(g.AccessLog == "" || g.AccessLog == StdoutLog || strings.HasPrefix(g.AccessLog, "/"), "gateway.accessLog",
		"is %q: use stdout, or the absolute path of a file", g.AccessLog)
	for i, origin := range g.CORSOrigins {
		u, err := url.Parse(origin)
		ok := err == nil && u.Host != "" && origin == u.Scheme+"://"+u.Host
		v.is(origin == "*" || ok, fmt.Sprintf("gateway.corsOrigins[%d]", i), "is %q: use a scheme and a host, such as https://chat.example.com, or *",
			origin)
	}
	v.sessions(g.Sessions)
	v.oneOf(g.AffinityFilter, []string{affinityOff, affinityWasm}, "gateway.affinityFilter")
	v.trust(g)
}

// sessions checks the places in which clients name their sessions.
func (v *validator) sessions(list []string) {
	v.is(len(list) <= sessionid.MaxSources, "gateway.sessions", "must have at most %d elements", sessionid.MaxSources)
	for i, text := range list {
		path := fmt.Sprintf("gateway.sessions[%d]", i)
		s, err := sessionid.Parse(text)
		v.is(err == nil, path, "%v", err)
		if s.Header != "" {
			v.header(s.Header, path)
		}
	}
}

// edge checks the bounds on clients' connections.
func (v *validator) edge(g *Gateway) {
	_, err := netip.ParseAddrPort(g.TrustedListen)
	v.is(err == nil || g.TrustedListen == "", "gateway.trustedListen",
		"is %q: use an IP and a port, such as 127.0.0.1:8090", g.TrustedListen)
	v.is(g.TrustedListen == "" || g.TrustedListen != g.Listen, "gateway.trustedListen", "must differ from gateway.listen")
	v.is(g.HeadersTimeout >= 0, "gateway.headersTimeout", "must not be negative")
	v.is(g.BodyTimeout >= 0, "gateway.bodyTimeout", "must not be negative")
	v.is(g.ConnectionIdleTimeout >= 0, "gateway.connectionIdleTimeout", "must not be negative")
	v.is(g.MaxConnections >= 1, "gateway.maxConnections", "must be at least 1")
	v.is((g.TLS.CertFile == "") == (g.TLS.KeyFile == ""), "gateway.tls.keyFile", "and gateway.tls.certFile need each other")
	v.is(g.TLS.CertFile != "" || g.TLS.ClientCAFile == "", "gateway.tls.clientCAFile", "has no effect until gateway.tls.certFile is set")
	v.is(g.MaxHeapBytes == 0 || g.MaxHeapBytes >= minHeapBytes, "gateway.maxHeapBytes", "must be 0, or at least %d", minHeapBytes)
}

// trust checks whose hints count.
func (v *validator) trust(g *Gateway) {
	v.oneOf(g.Hints, []string{hintsOff, hintsBody, hintsHeaders}, "gateway.hints")
	v.oneOf(g.HintsFrom, []string{hintsFromTrusted, hintsFromEveryone}, "gateway.hintsFrom")
	if g.RoleHeader != "" {
		v.header(g.RoleHeader, "gateway.roleHeader")
	}
	v.is(g.RoleHeader == "" || len(g.TrustedRoles) > 0, "gateway.trustedRoles",
		"must name at least one role, because gateway.roleHeader is set")
	v.is(g.RoleHeader != "" || len(g.TrustedRoles) == 0, "gateway.trustedRoles", "has no effect until gateway.roleHeader is set")
	if g.TenantHeader != "" {
		v.header(g.TenantHeader, "gateway.tenantHeader")
	}
	v.is(g.TenantHeader != "" || g.TenantSecretFile == "", "gateway.tenantSecretFile", "has no effect until gateway.tenantHeader is set")
}

// header accepts the name of an ordinary request header. Headers with credentials are refused, because routers
// keep the values in their logs.
func (v *validator) header(name, path string) {
	ok := name != ""
	for _, c := range []byte(name) {
		ok = ok && (c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' || c == '_')
	}
	v.is(ok, path, "is %q: use the name of a header in lower case, such as x-session-id", name)
	v.is(!slices.Contains(credentials, name), path, "is %q, whose values are credentials: use another header", name)
}

// credentials are headers whose values must be in no log.
var credentials = []string{"authorization", "proxy-authorization", "cookie", "api-key", "x-api-key"}

func (v *validator) model(m *Model, path string, names, workers, addresses map[string]string) {
	v.is(m.Name != "", path+".name", "is required: it is what clients put into \"model\"")
	v.is(len(m.Name) <= maxModelName, path+".name", "must have at most %d characters", maxModelName)
	v.is(m.Path != "" || !m.isLaunched(), path+".path",
		"is required with launch: a folder with tokenizer.json, a .gguf file, hf:ORG/MODEL, or builtin:sim")
	v.is(m.Canary == 0 || m.Canary >= minCanary, path+".canary", "must be 0s or at least %s", minCanary)
	v.is(m.BlockSize >= AutoBlockSize && m.BlockSize <= maxBlockSize, path+".blockSize",
		"must lie between 1 and %d, or be \"auto\"", maxBlockSize)
	v.targets(&m.Targets, path+".targets")
	v.oneOf(m.Router.Policy, pick.Names(), path+".router.policy")
	v.is(m.Router.DecodePolicy == "" || slices.Contains(pick.Names(), m.Router.DecodePolicy), path+".router.decodePolicy",
		"is %q: use one of %s", m.Router.DecodePolicy, strings.Join(pick.Names(), ", "))
	v.oneOf(m.Router.Prefill, serving.Prefills(), path+".router.prefill")
	v.is(m.Router.Temperature >= 0, path+".router.temperature", "must not be negative")
	_, err := m.Router.CostFunction()
	v.is(err == nil, path+".router.cost and weights", "%v", err)

	v.busy(&m.Router.Busy, path+".router.busy")
	v.queue(&m.Router, path+".router.queue")
	for i, alias := range m.Aliases {
		v.is(alias != "" && len(alias) <= maxModelName, fmt.Sprintf("%s.aliases[%d]", path, i),
			"must have 1 to %d characters", maxModelName)
	}
	for _, n := range m.Names() {
		v.is(names[n] == "", path, "the name %q is taken by %s", n, names[n])
		names[n] = path
	}
	v.is(m.ContextLength >= 0 && m.ContextLength <= maxContext, path+".contextLength", "must lie between 0 and %d", maxContext)
	v.adapters(m.Adapters, path+".adapters", names)
	v.is(m.Migration.Limit >= 0 && m.Migration.Limit <= maxMigrations, path+".migration.limit", "must lie between 0 and %d", maxMigrations)
	v.is(m.Migration.Limit != 0 || !m.Migration.Sampled, path+".migration.sampled", "has no effect: set limit, such as 3")
	v.roles(m, path)
	v.kv(m, path+".kv")
	for i := range m.Launch {
		v.launch(&m.Launch[i], fmt.Sprintf("%s.launch[%d]", path, i))
	}
	for i := range m.Workers {
		at := fmt.Sprintf("%s.workers[%d]", path, i)
		v.worker(&m.Workers[i], at)
		v.is(m.Path != "" || m.Workers[i].KVEvents == "", at+".kvEvents",
			"has no effect until %s.path is set: prompts that are not read are found in no cache", path)
		v.is(workers[m.Workers[i].Name] == "", at+".name", "is taken by %s", workers[m.Workers[i].Name])
		workers[m.Workers[i].Name] = at
		address := canonical(m.Workers[i].Address)
		v.is(addresses[address] == "", at+".address", "is taken by %s", addresses[address])
		addresses[address] = at
	}
}

// canonical returns an address in the one spelling that all spellings of it share.
func canonical(address string) string {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return strings.ToLower(address) // a name
	}
	return netip.AddrPortFrom(at.Addr().Unmap(), at.Port()).String()
}

// adapters checks that each adapter has a name that no model has, and a name of its own in the engines' events.
func (v *validator) adapters(list []Adapter, path string, names map[string]string) {
	inEvents := map[string]bool{}
	for i := range list {
		a, at := &list[i], fmt.Sprintf("%s[%d]", path, i)
		v.is(a.Name != "", at+".name", "is required: it is what clients put into \"model\"")
		v.is(len(a.Name) <= maxModelName && len(a.EngineName) <= maxModelName, at, "must have names of at most %d characters", maxModelName)
		v.is(len(a.Path) <= maxAdapterPath, at+".path", "must have at most %d characters", maxAdapterPath)
		v.is(a.Path == "" || fleet.ValidAdapter(a.Name), at+".name", "must be of UTF-8 without control characters")
		v.is(names[a.Name] == "", at, "the name %q is taken by %s", a.Name, names[a.Name])
		names[a.Name] = at
		v.is(!inEvents[a.EngineName], at+".engineName", "is that of another adapter of the model")
		inEvents[a.EngineName] = true
	}
}

// busy checks mistakes that only the file can have, and leaves the rest to the owner of the thresholds.
func (v *validator) busy(b *Busy, path string) {
	v.is(b.PrefillShare <= maxPrefillShare, path+".prefillShare", "must be at most %d", maxPrefillShare)
	v.is(b.Status != 0, path+".status", "is 0: use 429, 503 or 529")
	owned := b.Route()
	v.owned(owned.Validate(), path)
}

// owned adds the problems that the owner of some values found, which begin with the key below path.
func (v *validator) owned(err error, path string) {
	if err == nil {
		return
	}
	for line := range strings.Lines(err.Error()) {
		v.errs = append(v.errs, errors.New(path+"."+strings.TrimSuffix(line, "\n")))
	}
}

func (v *validator) queue(r *Router, path string) {
	q := &r.Queue
	isBounded := r.Busy.PrefillTokens > 0 || r.Busy.PrefillShare > 0 || r.Busy.KVUsage > 0
	v.is(q.MaxWait == 0 || q.MaxWait >= minWait, path+".maxWait", "must be 0s, or at least %s", minWait)
	v.is(q.MaxWait == 0 || isBounded || q.Programs, path+".maxWait", "has no effect until router.busy sets when a rank is busy")
	v.is(q.Hold == 0 || q.Hold >= minWait, path+".hold", "must be 0s, or at least %s", minWait)
	v.is(q.MaxWait > 0 || !q.Programs, path+".programs", "has no effect until router.queue.maxWait is set")
	v.order(q.Order, path)
	v.is(q.Requests >= 1, path+".requests", "must be at least 1")
	v.is(q.Tokens >= 0 && q.CachedTokens >= 0, path, "must not have negative limits")

	seen := map[string]bool{}
	for i := range q.Classes {
		c, at := &q.Classes[i], fmt.Sprintf("%s.classes[%d]", path, i)
		v.name(c.Name, at)
		v.is(!seen[c.Name], at+".name", "is there twice")
		seen[c.Name] = true
		v.is(c.Quantum >= 1 && c.Quantum <= queue.MaxQuantum, at+".quantum", "must lie between 1 and %d", queue.MaxQuantum)
		v.order(c.Order, at)
		v.is(c.Requests >= 0 && c.Tokens >= 0 && c.CachedTokens >= 0, at, "must not have negative limits")
	}
}

func (v *validator) order(name, path string) {
	_, err := queue.ParseOrder(name)
	v.is(err == nil && name != "", path+".order", "is %q: use fcfs, lcfs or wspt", name)
}

func (v *validator) name(name, path string) {
	v.is(fleet.ValidName(name), path+".name", "is %q: it must match [a-z0-9-]+ and have at most 63 characters", name)
}

// role checks the role of a launch or a worker.
func (v *validator) role(name, path string) {
	role, err := fleet.ParseRole(name)
	switch {
	case err != nil || name == "":
		v.is(false, path+".role", "is %q: use aggregated, prefill or decode", name)
	case role == fleet.Encode:
		v.is(false, path+".role", "%s %s", name, noEffect)
	}
}

// roles returns how many launches and workers of the model have each role.
func (m *Model) roles() map[string]int {
	count := map[string]int{}
	for i := range m.Launch {
		count[m.Launch[i].Role]++
	}
	for i := range m.Workers {
		count[m.Workers[i].Role]++
	}
	return count
}

// isSplit reports whether requests of the model are split between workers that prefill and workers that decode.
func (m *Model) isSplit() bool {
	count := m.roles()
	return count[fleet.Prefill.String()]+count[fleet.Decode.String()] > 0
}

// roles checks that the workers of a model have roles that serve whole requests together.
func (v *validator) roles(m *Model, path string) {
	if !m.isSplit() {
		return
	}
	count := m.roles()
	v.is(count[fleet.Prefill.String()] > 0 && count[fleet.Decode.String()] > 0, path,
		"must have both prefill and decode workers: one of them alone serves no whole request")
	v.is(count[fleet.Aggregated.String()] == 0, path,
		"has aggregated workers beside prefill and decode workers, and they would get no requests: give them another role or model")
	kinds := m.transfers()
	v.is(len(kinds) <= 1, path, "has workers with different transfers of KV caches, %s: those of a model must have the same",
		strings.Join(kinds, " and "))
	v.is(m.Path != "" || len(m.Launch) > 0, path+".path", "is required with prefill and decode workers, to know which prompts they hold")
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

func (v *validator) taints(names []string, path string) {
	_, err := fleet.NewTaints(names)
	v.is(err == nil, path, "%v", err)
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

// bus checks how the processes find each other and prove who they are.
func (v *validator) bus(b *Bus) {
	v.busURL(b.URL)
	v.is((b.User == "") == (b.PasswordFile == ""), "bus.passwordFile", "and bus.user need each other")
	v.is(b.User == "" || b.CredentialsFile == "", "bus.credentialsFile", "replaces bus.user: remove one")
	v.is((b.CertFile == "") == (b.KeyFile == ""), "bus.keyFile", "and bus.certFile need each other")
}

// tracing checks the receiver of spans.
func (v *validator) tracing(t *Tracing) {
	v.is(t.Ratio >= 0 && t.Ratio <= 1, "tracing.ratio", "must lie between 0 and 1")
	v.is(t.SlowerThan >= 0, "tracing.slowerThan", "must not be negative")
	if t.Endpoint == "" {
		return
	}
	u, err := url.Parse(t.Endpoint)
	ok := err == nil && slices.Contains([]string{"http", "https", "grpc"}, u.Scheme) && u.Host != "" && u.RawQuery == "" && u.User == nil &&
		(u.Scheme != "grpc" || u.Port() != "" && u.Path == "")
	v.is(ok, "tracing.endpoint", "is not the address of a receiver, such as http://127.0.0.1:4318 or grpc://127.0.0.1:4317")
}

// maxExcept bounds the entries with which each connection to an engine is compared.
const maxExcept = 256

// engineTLS checks the certificates of connections to engines.
func (v *validator) engineTLS(t *EngineTLS) {
	v.is((t.CertFile == "") == (t.KeyFile == ""), "engineTLS.keyFile", "and engineTLS.certFile need each other")
	v.is(t.CAFile != "" || t.CertFile == "", "engineTLS.certFile", "has no effect until engineTLS.caFile is set")
	_, err := fleet.ParseAddresses(t.Except)
	v.is(err == nil, "engineTLS.except", "has %v", err)
	v.is(len(t.Except) <= maxExcept, "engineTLS.except", "must have at most %d entries: use networks or ranges of ports", maxExcept)
	v.is(t.CAFile != "" || len(t.Except) == 0, "engineTLS.except", "has no effect until engineTLS.caFile is set")
	_, _, isName := fleet.SplitName(t.ServerName + ":1")
	v.is(isName, "engineTLS.serverName", "is %q: use a DNS name that the certificates of all engines have", t.ServerName)
}

// busURL checks the addresses of NATS servers, which a comma separates.
func (v *validator) busURL(urls string) {
	if urls == "" {
		return
	}
	for text := range strings.SplitSeq(urls, ",") {
		u, err := url.Parse(strings.TrimSpace(text))
		ok := err == nil && slices.Contains([]string{"nats", "tls", "ws", "wss"}, u.Scheme) && u.Host != ""
		v.is(ok, "bus.url", "is not the address of a NATS server, such as nats://127.0.0.1:4222")
	}
}
