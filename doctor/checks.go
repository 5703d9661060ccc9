package doctor

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/stator-project/stator/bus"
)

// checks are all checks, in the order of their findings: causes come before effects.
var checks = []check[*observation]{
	{name: "router", run: checkRouter},
	{name: "bus", run: checkBus},
	{name: "bus-connection", run: checkBusConnection},
	{name: "agent", run: checkAgent},
	{name: "file", run: checkFile},
	{name: "reload", run: checkReload},
	{name: "absent", run: checkAbsent},
	{name: "front-door", run: checkFrontDoor},
	{name: "model", run: checkModel},
	{name: "model-files", run: checkModelFiles},
	{name: "engine-restarts", run: checkEngineRestarts},
	{name: "lease", run: checkLease},
	{name: "engine", run: checkEngine},
	{name: "asleep", run: checkAsleep},
	{name: "same-address", run: checkSameAddress},
	{name: "role", run: checkRole},
	{name: "halves", run: checkHalves},
	{name: "transfer-connector", run: checkConnector},
	{name: "transfer-path", run: checkTransferPath},
	{name: "transfer-version", run: checkTransferVersion},
	{name: "transfer-address", run: checkTransferAddress},
	{name: "served-name", run: checkServedName},
	{name: "adapters", run: checkAdapters},
	{name: "tokenizer", run: checkTokenizer},
	{name: "context-length", run: checkContextLength},
	{name: "dynamo-frontend", run: checkFrontend},
	{name: "engine-metrics", run: checkEngineMetrics},
	{name: "block-size", run: checkBlockSize},
	{name: "cache-capacity", run: checkCapacity},
	{name: "prefix-caching", run: checkPrefixCaching},
	{name: "event-socket", run: checkEventSocket},
	{name: "events-off", run: checkEventsOff},
	{name: "events-unlisted", run: checkEventsUnlisted},
	{name: "events-replay", run: checkReplay},
	{name: "events-unused", run: checkEventsUnused},
	{name: "events-arrive", run: checkEventsArrive},
	{name: "events-understood", run: checkEventsUnderstood},
	{name: "event-content", run: checkEventContent},
	{name: "agent-events", run: checkAgentEvents},
	{name: "cache-state", run: checkCacheState},
	{name: "index-size", run: checkIndexSize},
	{name: "epoch", run: checkEpoch},
	{name: "clock", run: checkClock},
	{name: "hit-rate", run: checkHitRate},
	{name: "prefix-breaker", run: checkPrefixBreaker},
	{name: "drift", run: checkDrift},
	{name: "engine-hashes", run: checkEngineHashes},
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
