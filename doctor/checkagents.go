package doctor

import (
	"cmp"
	"fmt"
	"math"
	"time"

	"github.com/stator-project/stator/internal/metric"
)

// The checks of agents, of the leases that they hold, and of the knowledge that routers have from them.

func checkAgent(o *observation) (found []Finding) {
	for _, a := range o.agents {
		if a.err != nil {
			found = append(found, Finding{
				Subject: "agent " + a.address, What: fmt.Sprintf("its admin port does not show its engines: %v", a.err),
				Why:    "the state of its engines and of their events cannot be checked",
				Remedy: "start `stator agent`, or correct --agent; the admin port of an agent listens at its --admin-address",
			})
		}
	}
	return found
}

// checkBusConnection finds processes that have lost their bus. The bus may be there for the doctor all the same.
func checkBusConnection(o *observation) (found []Finding) {
	if o.busErr != nil {
		return nil // the bus is down for all
	}

	found = append(found, busFindings("router", o.router.metricsNow)...)
	for _, a := range o.agents {
		found = append(found, busFindings("agent "+a.address, a.metrics)...)
	}
	return found
}

// busFindings returns a finding for each connection to the bus that a process has lost.
func busFindings(subject string, metrics metric.Samples) (found []Finding) {
	for _, s := range metrics {
		if s.Name != "stator_bus_connected" || s.Value > 0 {
			continue
		}
		found = append(found, Finding{
			Subject: subject, What: fmt.Sprintf("its connection to the bus for %s is down", s.Labels["connection"]),
			Why:    "leases end, and KV events, loads and bookings do not arrive",
			Remedy: "look at its log for the reason: the address, the user, the certificate or the network between them",
		})
	}
	return found
}

// restartsToReport is the number of an engine's failures that are too many, and recentFailure the time for which they matter.
const (
	restartsToReport = 3
	recentFailure    = 15 * time.Minute
)

// eachEngine runs a check on every engine of every agent, and sets the subject of findings.
func eachEngine(o *observation, check func(e *agentEngine) []Finding) (found []Finding) {
	for _, a := range o.everyAgent() {
		for i := range a.engines {
			for _, f := range check(&a.engines[i]) {
				f.Subject = "worker " + a.engines[i].Worker
				found = append(found, f)
			}
		}
	}
	return found
}

func checkEngineRestarts(o *observation) []Finding {
	return eachEngine(o, func(e *agentEngine) []Finding {
		if e.Failures < restartsToReport || e.SecondsSinceFailure > recentFailure.Seconds() {
			return nil
		}
		ago := time.Duration(e.SecondsSinceFailure * float64(time.Second)).Round(time.Second)
		return []Finding{{
			What: fmt.Sprintf("its engine failed %s, the last time %s ago: %s; its last line is %q",
				times(e.Failures), ago, e.LastError, e.LastLine),
			Why:    "each start loses its cache, and meanwhile the others have its requests",
			Remedy: cmp.Or(e.Remedy, "start the engine by hand with the arguments of launch[].args to see all of its output; correct them"),
		}}
	})
}

// settled is the longest time that an agent may need for the cache of a ready engine.
const settled = 10 * time.Second

// checkAgentEvents finds engines that are ready and whose caches their agents do not have exactly. There is one
// finding for a rank: the first cause.
func checkAgentEvents(o *observation) []Finding {
	return eachEngine(o, func(e *agentEngine) (found []Finding) {
		if e.State != "ready" || e.StateSeconds < settled.Seconds() {
			return nil
		}
		for _, r := range e.Ranks {
			f, wrong := agentEventsFinding(&r)
			if wrong {
				f.Why = "no router can have its cache exactly, so cached prefixes are missed or expected in vain"
				found = append(found, f)
			}
		}
		return found
	})
}

func agentEventsFinding(r *agentRank) (f Finding, wrong bool) {
	exact := r.CacheState == "exact"
	s := r.Source
	if s == nil {
		s = &agentSource{}
	}

	switch {
	case !s.Connected:
		f.What = fmt.Sprintf("its agent is not connected to the event socket of rank %d: %s", r.Rank, orNothing(s.LastError))
		f.Remedy = "check that the engine publishes events (--kv-events-config) at the socket that the agent reads"
	case s.Malformed > 0:
		f.What = fmt.Sprintf("its agent cannot decode %s of rank %d: %s", count(s.Malformed, "message"), r.Rank, orNothing(s.LastError))
		f.Remedy = "compare the engine's version with those that Stator supports, and restart the engine after the change"
	case s.Unrecovered > 0 && !exact:
		f.What = fmt.Sprintf("its agent lost events of rank %d %s, and no replay had them", r.Rank, times(s.Unrecovered))
		f.Remedy = "raise buffer_steps of the engine; its state is exact again when its cache was empty once"
	case !exact:
		f.What = fmt.Sprintf("the cache of rank %d is %s at its agent, because of: %s", r.Rank, r.CacheState, orNothing(r.Reason))
		f.Remedy = "look at /debug/agent and at the agent's log; restart the engine if the reason is gap, unreadable or snapshot"
	default:
		return f, false
	}
	return f, true
}

func orNothing(reason string) string {
	if reason == "" {
		return "no reason is known"
	}
	return reason
}

func checkLease(o *observation) (found []Finding) {
	for _, r := range o.router.fleet.Ranks {
		if r.UnleasedSince == nil || r.Rank > 0 {
			continue
		}
		found = append(found, Finding{
			Subject: "worker " + r.Worker,
			What:    fmt.Sprintf("it serves without a lease since %s: its agent is silent", r.UnleasedSince.Format(time.TimeOnly)),
			Why:     "its KV events and its load do not arrive, and a new router does not find it",
			Remedy:  "look at its agent: it may hang, be stopped, or be cut off from the bus",
		})
	}
	return found
}

func checkIndexSize(o *observation) []Finding {
	x := o.router.fleet.Index
	if x == nil || x.FleetBlocks <= x.Room {
		return nil
	}

	const mib = 1 << 20
	return []Finding{{
		Subject: "router",
		What:    fmt.Sprintf("its index has room for %d of the %d blocks that the fleet can cache", x.Room, x.FleetBlocks),
		Why:     "blocks that were stored long ago are evicted from the index while engines still have them, so they are not found",
		Remedy:  fmt.Sprintf("set index.maxBytes to %.0f MiB or more", math.Ceil(float64(x.NeededBytes)/mib)),
	}}
}
