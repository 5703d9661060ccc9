package doctor

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/engines"
	"github.com/stator-project/stator/internal/enginetls"
	"github.com/stator-project/stator/internal/fleet"
)

// checks are all checks, in the order of their findings: causes come before effects.
var checks = []struct {
	name string
	run  func(o *observation) []Finding
}{
	{"router", checkRouter},
	{"bus", checkBus},
	{"bus-connection", checkBusConnection},
	{"agent", checkAgent},
	{"file", checkFile},
	{"reload", checkReload},
	{"absent", checkAbsent},
	{"front-door", checkFrontDoor},
	{"model", checkModel},
	{"model-files", checkModelFiles},
	{"engine-restarts", checkEngineRestarts},
	{"lease", checkLease},
	{"engine", checkEngine},
	{"asleep", checkAsleep},
	{"same-address", checkSameAddress},
	{"role", checkRole},
	{"halves", checkHalves},
	{"transfer-connector", checkConnector},
	{"transfer-path", checkTransferPath},
	{"transfer-version", checkTransferVersion},
	{"transfer-address", checkTransferAddress},
	{"served-name", checkServedName},
	{"adapters", checkAdapters},
	{"tokenizer", checkTokenizer},
	{"context-length", checkContextLength},
	{"dynamo-frontend", checkFrontend},
	{"engine-metrics", checkEngineMetrics},
	{"block-size", checkBlockSize},
	{"cache-capacity", checkCapacity},
	{"prefix-caching", checkPrefixCaching},
	{"event-socket", checkEventSocket},
	{"events-off", checkEventsOff},
	{"events-unlisted", checkEventsUnlisted},
	{"events-replay", checkReplay},
	{"events-unused", checkEventsUnused},
	{"events-arrive", checkEventsArrive},
	{"events-understood", checkEventsUnderstood},
	{"event-content", checkEventContent},
	{"agent-events", checkAgentEvents},
	{"cache-state", checkCacheState},
	{"index-size", checkIndexSize},
	{"epoch", checkEpoch},
	{"clock", checkClock},
	{"hit-rate", checkHitRate},
	{"prefix-breaker", checkPrefixBreaker},
	{"drift", checkDrift},
	{"engine-hashes", checkEngineHashes},
}

func checkRouter(o *observation) []Finding {
	r := &o.router
	switch {
	case r.err != nil:
		return []Finding{{
			Subject: "router", What: fmt.Sprintf("the admin port %s does not answer: %v", r.address, r.err),
			Why:    "the state of the router cannot be checked; if it is down, Envoy balances requests without regard to caches",
			Remedy: "start `stator extproc` or `stator up`, or name the router's admin port with --admin-address",
		}}
	case r.ready != nil:
		return []Finding{{
			Subject: "router", What: fmt.Sprintf("it is not ready: %v", r.ready),
			Why:    "requests for a model without a ready worker are refused",
			Remedy: "look at /debug/fleet, and at the logs of the agents for the reason why engines do not start",
		}}
	}
	return nil
}

func checkBus(o *observation) []Finding {
	if o.busErr == nil {
		return nil
	}
	return []Finding{{
		Subject: "bus", What: fmt.Sprintf("%s cannot be reached: %v", bus.Redacted(o.busURL), o.busErr),
		Why:    "routers receive no new workers, KV events or bookings, and cache states become stale",
		Remedy: "start `stator bus`, or correct bus.url",
	}}
}

func checkFile(o *observation) (found []Finding) {
	if o.router.err != nil {
		return nil
	}
	for i := range o.workers {
		w := &o.workers[i]
		if w.fromFile && !w.inRouter {
			found = append(found, Finding{
				Subject: "worker " + w.name, What: "it is in the configuration and not in the router's fleet",
				Why:    "it gets no requests; and if the router runs with another configuration, the other findings may not apply to it",
				Remedy: "restart the router with this configuration, or pass the doctor the file that the router runs with",
			})
		}
	}
	return found
}

// checkFrontDoor looks for a gateway that other machines reach and that neither encrypts nor asks who they are. Another proxy may do both.
func checkFrontDoor(o *observation) (found []Finding) {
	at, err := netip.ParseAddrPort(o.gateway.Listen)
	if err != nil || at.Addr().IsLoopback() {
		return nil
	}
	if o.gateway.TLS.CertFile == "" {
		found = append(found, Finding{
			Subject: "the gateway", What: "it listens beyond loopback without TLS", Note: true,
			Why:    "prompts, answers and keys can be read on the way, unless the network or a proxy before the gateway encrypts",
			Remedy: "set gateway.tls: see docs/front-door.md",
		})
	}
	if !o.gateway.Auth.IsOn() && o.gateway.TLS.ClientCAFile == "" {
		found = append(found, Finding{
			Subject: "the gateway", What: "it listens beyond loopback and asks clients for no key", Note: true,
			Why:    "everyone who reaches the port can use the engines, unless a proxy before the gateway asks",
			Remedy: "set gateway.auth: see docs/front-door.md",
		})
	}
	return found
}

// checkReload looks for settings of the files that parts do not use.
func checkReload(o *observation) (found []Finding) {
	seen := map[string]*configSeen{"the router": o.router.config}
	for i := range o.agents {
		seen["agent "+o.agents[i].address] = o.agents[i].config
	}
	for _, subject := range slices.Sorted(maps.Keys(seen)) {
		c := seen[subject]
		if c == nil {
			continue
		}

		if c.Error != "" {
			found = append(found, Finding{
				Subject: subject, What: "it has refused the present content of " + c.Path + ": " + c.Error,
				Why:    "its last configuration stays in force, and changes since then have no effect",
				Remedy: "correct the file; stator validate --config FILE checks it",
			})
		}
		if len(c.Pending) > 0 {
			found = append(found, Finding{
				Subject: subject, What: "keys of " + c.Path + " have no effect yet: " + strings.Join(c.Pending, ", "),
				Why: "the process reads them only at its start", Remedy: "restart the process",
			})
		}
	}
	return found
}

// checkAbsent compares the workers that the router expects of agents, and the other parts that the configuration expects, with those that
// are there.
func checkAbsent(o *observation) (found []Finding) {
	for _, s := range o.router.metricsNow {
		if s.Name != "stator_fleet_expected_workers" {
			continue
		}
		model, node := s.Labels["model"], s.Labels["node"]
		role := s.Labels["role"]
		there := o.router.metricsNow.Sum("stator_fleet_present_workers", "model", model, "role", role, "node", node)
		if there >= s.Value {
			continue
		}

		f := Finding{
			Subject: "model " + model, What: fmt.Sprintf("%g of %g %s workers are there", there, s.Value, role),
			Why:    "the others serve its requests, with less room in their caches",
			Remedy: "look at the agents: /debug/agent of each has its engines, and why they do not start",
		}
		if node != "" {
			f.Subject += " on node " + node
			f.Remedy = "start its agent, stator agent --node " + node +
				", or look at /debug/agent there, which has the engines and why they do not start"
		}
		found = append(found, f)
	}
	return append(found, absentParts(o)...)
}

// partCommands start the parts.
var partCommands = map[bus.PartKind]string{
	bus.PartRouter: "stator extproc", bus.PartControl: "stator xds", bus.PartPlanner: "stator planner", bus.PartStore: "stator agent",
}

// absentParts compares the parts that the configuration expects with those that the router sees on the bus.
func absentParts(o *observation) (found []Finding) {
	for _, s := range o.router.metricsNow {
		part := s.Labels["part"]
		kind := bus.PartKind(part)
		command, known := partCommands[kind]
		there := o.router.metricsNow.Sum("stator_cluster_present_parts", "part", part)
		if s.Name != "stator_cluster_expected_parts" || !known || there >= s.Value {
			continue
		}
		found = append(found, Finding{
			Subject: "the cluster", What: fmt.Sprintf("%g of %g %s are there", there, s.Value, kind.Plural()),
			Why: "the next one that fails may have no other to take its place",
			Remedy: "start " + command +
				", or look at its log for why it has lost the bus; /readyz of the router names those that it sees",
		})
	}
	return found
}

func checkModel(o *observation) (found []Finding) {
	for _, m := range o.models {
		if m.err != nil {
			found = append(found, Finding{
				Subject: "model " + m.name, What: m.err.Error(),
				Why:    "its prompts cannot be tokenized, so its requests cannot be routed by cache",
				Remedy: "set models[].path to the folder that the engines load",
			})
		}
	}
	return found
}

// checkModelFiles looks at the router's own files: the doctor may run on another machine, with another cache and another token.
func checkModelFiles(o *observation) (found []Finding) {
	for _, m := range o.models {
		if o.router.metricsNow.Sum("stator_extproc_model_without_files", "model", m.name) > 0 {
			found = append(found, Finding{
				Subject: "model " + m.name, What: "the router does not have its files " + m.path,
				Why:    "its prompts are not read, so its requests go to the least loaded worker, without regard to caches",
				Remedy: "the router's /readyz and log have the reason; it tries again by itself, and at once after a change of its file",
			})
		}
	}
	return found
}

// eachAnswering runs a check on every worker whose engine answered, and sets the subject of findings.
func eachAnswering(o *observation, check func(w *workerSeen, m *modelSeen) (Finding, bool)) (found []Finding) {
	for i := range o.workers {
		w := &o.workers[i]
		if w.engine.err != nil {
			continue
		}
		if f, wrong := check(w, o.model(w.model)); wrong {
			f.Subject = "worker " + w.name
			found = append(found, f)
		}
	}
	return found
}

// eachRead is eachAnswering for the workers of models whose prompts are read. The caches of others have no effect on routing.
func eachRead(o *observation, check func(w *workerSeen, m *modelSeen) (Finding, bool)) []Finding {
	return eachAnswering(o, func(w *workerSeen, m *modelSeen) (Finding, bool) {
		if m != nil && m.path == "" {
			return Finding{}, false
		}
		return check(w, m)
	})
}

func checkEngine(o *observation) (found []Finding) {
	for _, w := range o.workers {
		if w.engine.err == nil {
			continue
		}
		f := Finding{
			Subject: "worker " + w.name, What: fmt.Sprintf("its engine at %s does not answer /v1/models: %v", w.address, w.engine.err),
			Why:    "requests sent there fail or wait",
			Remedy: "start the engine, or correct the worker's address",
		}
		var refused *enginetls.Error
		switch {
		case errors.As(w.engine.err, &refused):
			f.What = fmt.Sprintf("there is no connection to its engine at %s: %s (%v)", w.address, refused.What, refused.Err)
			f.Remedy = refused.Remedy
		case w.engine.needsTLS:
			f.What = fmt.Sprintf("its engine at %s speaks TLS, and the configuration has no engineTLS for it", w.address)
			f.Remedy = "set engineTLS.caFile to the authority of its certificate, and engineTLS.serverName to a DNS name in it; " +
				"engineTLS.except must not have its address"
		}
		found = append(found, f)
	}
	return found
}

func checkServedName(o *observation) []Finding {
	return eachAnswering(o, func(w *workerSeen, m *modelSeen) (Finding, bool) {
		var ids []string
		for _, s := range w.engine.served {
			ids = append(ids, s.ID)
			if m == nil || slices.Contains(m.names, s.ID) {
				return Finding{}, false
			}
		}
		if len(ids) == 0 || m == nil || w.kind.AnyModelName {
			return Finding{}, false
		}

		return Finding{
			What:   fmt.Sprintf("it serves %s and not %s", strings.Join(ids, ", "), m.name),
			Why:    "it refuses every request that is sent there",
			Remedy: fmt.Sprintf("start it with --served-model-name %s, or rename the model, or add an alias", m.name),
		}, true
	})
}

func checkTokenizer(o *observation) []Finding {
	return eachRead(o, func(w *workerSeen, m *modelSeen) (Finding, bool) {
		if m == nil || m.err != nil || len(w.engine.tokens) != len(m.tokens) {
			return Finding{}, false
		}

		for i, theirs := range w.engine.tokens {
			ours := m.tokens[i]
			if theirs == nil || ours == nil || slices.Equal(ours, theirs) {
				continue
			}
			remedy := "set models[].path to the folder that the engine loads"
			if isChat(i) {
				remedy += ", or give it the engine's chat template: texts without a chat have equal tokens"
			}
			return Finding{
				What: fmt.Sprintf("%s has %s on the engine and %d here; token %d differs",
					sampleName(i), count(len(theirs), "token"), len(ours), firstDifference(ours, theirs)),
				Why:    "other tokens have other block hashes, so no prompt is found in its cache",
				Remedy: remedy + " (configured: " + m.path + ")",
			}, true
		}
		return Finding{}, false
	})
}

func sampleName(sample int) string {
	if isChat(sample) {
		return "a chat"
	}

	const most = 24 // characters
	text := []rune(sampleTexts[sample])
	if len(text) > most {
		return fmt.Sprintf("the text %q", string(text[:most])+"…")
	}
	return fmt.Sprintf("the text %q", string(text))
}

// firstDifference returns the index of the first token that differs.
func firstDifference(a, b []uint32) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	return min(len(a), len(b))
}

func checkContextLength(o *observation) []Finding {
	return eachRead(o, func(w *workerSeen, m *modelSeen) (Finding, bool) {
		if m == nil {
			return Finding{}, false
		}

		routed := o.routedLength(m)
		for _, s := range w.engine.served {
			if !slices.Contains(m.names, s.ID) || s.MaxLen == 0 || routed == 0 || s.MaxLen == routed {
				continue
			}
			f := Finding{What: fmt.Sprintf("its max_model_len is %d, and the context length of model %s is %d", s.MaxLen, m.name, routed)}
			if s.MaxLen < routed {
				f.Why = "longer prompts are sent there, wait, and are then refused by the engine"
				f.Remedy = "raise --max-model-len of the engine, or set models[].contextLength to its value"
			} else {
				f.Why = "the router refuses prompts that the engine would serve"
				f.Remedy = "set models[].contextLength to the engine's max_model_len"
			}
			return f, true
		}
		return Finding{}, false
	})
}

// routedLength returns the context length that the router uses for a model, in tokens; 0 is unknown. Without
// models[].contextLength it is the largest of the model's engines.
func (o *observation) routedLength(m *modelSeen) int {
	if m.lengthIsSet {
		return m.contextLength
	}

	longest := 0
	for i := range o.workers {
		w := &o.workers[i]
		if w.model == m.name && len(w.engine.served) > 0 {
			longest = max(longest, w.engine.served[0].MaxLen)
		}
	}
	return cmp.Or(longest, m.contextLength)
}

// reportedBlockSize returns the engine's block size and the source that it was read from. Events count
// first, because metrics show the configured size even if the engine uses another.
func (w *workerSeen) reportedBlockSize() (size int, source string) {
	for _, s := range w.sockets {
		if s.blockSize > 0 {
			return s.blockSize, "its events"
		}
	}
	if w.kind.Pages == engines.SGLangPages {
		return w.engine.blockSize, "its options"
	}
	return w.engine.blockSize, "its metrics"
}

// blockSizes returns the block sizes of a model as the router finds them.
func (o *observation) blockSizes(m *modelSeen) config.BlockSizes {
	reported := map[int]int{}
	for i := range o.workers {
		if w := &o.workers[i]; w.model == m.name {
			if size, _ := w.reportedBlockSize(); size > 0 {
				reported[size]++
			}
		}
	}
	sizes := config.NewBlockSizes(m.blockSize, reported)
	sizes.Model = cmp.Or(sizes.Model, fleet.DefaultBlockSize)
	return sizes
}

// checkBlockSize finds engines whose block size is not the configured one, or does not go with the sizes of the model's other engines.
func checkBlockSize(o *observation) []Finding {
	return eachRead(o, func(w *workerSeen, m *modelSeen) (Finding, bool) {
		size, source := w.reportedBlockSize()
		if m == nil || size == 0 {
			return Finding{}, false
		}

		sizes := o.blockSizes(m)
		fits := slices.Contains(sizes.Engines, size)
		f := Finding{What: fmt.Sprintf("its blocks have %s according to %s", count(size, "token"), source)}
		switch {
		case m.blockSize > 0 && size != m.blockSize:
			f.What += fmt.Sprintf(", and models[].blockSize of model %s is %d", m.name, m.blockSize)
			f.Why = "the number counts for engines without events: predictions of their caches are wrong"
			f.Remedy = "leave models[].blockSize out, or "
		case size < config.MinAutoBlockSize:
			f.What += fmt.Sprintf(", and the least that model %s can have is %d", m.name, config.MinAutoBlockSize)
		case !fits:
			f.What += fmt.Sprintf(", which does not go with the blocks of model %s of %d", m.name, sizes.Model)
		}
		if !fits {
			f.Why = "the router has no blocks that divide them: its events are ignored, and no prompt is found in its cache"
		}
		f.Remedy += fmt.Sprintf(cmp.Or(w.kind.Remedies.BlockSize, "give the engine blocks of %d tokens"), cmp.Or(m.blockSize, sizes.Model))
		return f, f.Why != ""
	})
}

func checkPrefixCaching(o *observation) []Finding {
	return eachRead(o, func(w *workerSeen, _ *modelSeen) (Finding, bool) {
		if w.engine.mode == fleet.Decode.String() {
			return Finding{}, false // SGLang turns it off in this mode: the blocks of decode workers come from others
		}
		return Finding{
			What:   "its prefix cache is off",
			Why:    "it computes every prompt in full, so routing by cache has no effect",
			Remedy: w.kind.Remedies.Caching,
		}, w.engine.cachingOff
	})
}
