package doctor

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/stator-project/stator/internal/fleet"
)

// The checks of workers that are described in a way that has no effect, or a wrong one.

// checkSameAddress finds workers that are one engine: a lease and the file may both describe it.
func checkSameAddress(o *observation) (found []Finding) {
	first := map[netip.AddrPort]string{}
	for i := range o.workers {
		w := &o.workers[i]
		address, err := netip.ParseAddrPort(w.address)
		if err != nil {
			continue // of a worker without an engine yet
		}
		address = netip.AddrPortFrom(address.Addr().Unmap(), address.Port())

		other, isTaken := first[address]
		if !isTaken {
			first[address] = w.name
			continue
		}
		found = append(found, Finding{
			Subject: "worker " + w.name, What: fmt.Sprintf("it has the address of worker %s, %s", other, w.address),
			Why:    "the engine gets the requests of two workers, and each of them is booked without those of the other",
			Remedy: "correct the address, or remove one of them: an engine that an agent starts must not be under models[].workers too",
		})
	}
	return found
}

// checkRole finds roles that nothing uses. The file cannot have one, but leases of other programs can.
func checkRole(o *observation) (found []Finding) {
	named := map[string]bool{}
	for _, r := range o.router.fleet.Ranks {
		if r.Role == "" || r.Role == fleet.Aggregated.String() || named[r.Worker] {
			continue
		}
		named[r.Worker] = true
		found = append(found, Finding{
			Subject: "worker " + r.Worker, What: fmt.Sprintf("its role is %s, which has no effect", r.Role),
			Why:    "it gets whole requests like all others, also those that its engine is not set up for",
			Remedy: fmt.Sprintf("remove the role, so that it is %s", fleet.Aggregated),
		})
	}
	return found
}

// checkAdapters finds LoRA adapters that an engine serves and the configuration does not name.
func checkAdapters(o *observation) []Finding {
	known := map[string]bool{}
	for _, m := range o.models {
		for _, name := range slices.Concat(m.names, m.adapters) {
			known[name] = true
		}
	}

	return eachAnswering(o, func(w *workerSeen, m *modelSeen) (Finding, bool) {
		var unknown []string
		for _, s := range w.engine.served {
			if s.Parent != "" && !known[s.ID] {
				unknown = append(unknown, s.ID)
			}
		}
		if m == nil || len(unknown) == 0 {
			return Finding{}, false
		}

		const most = 5 // names in a finding
		names := strings.Join(unknown[:min(len(unknown), most)], ", ")
		if len(unknown) > most {
			names += fmt.Sprintf(" and %d more", len(unknown)-most)
		}
		return Finding{
			What:   fmt.Sprintf("its engine serves %s that model %s does not have: %q", count(len(unknown), "adapter"), m.name, names),
			Why:    "the router refuses requests for them, as for every unknown model, and ignores the KV events of their blocks",
			Remedy: "add them to models[].adapters",
		}, true
	})
}

// checkEventsOff finds engines that publish no events although the configuration expects some. Where the socket cannot be
// connected to, checkEventSocket reports that.
func checkEventsOff(o *observation) []Finding {
	return eachAnswering(o, func(w *workerSeen, _ *modelSeen) (Finding, bool) {
		isOff := w.engine.sourcesErr == nil && len(w.engine.sources) == 0
		isReported := slices.ContainsFunc(w.sockets, func(s socketSeen) bool { return s.err != nil || s.messages > 0 })
		if !w.fromFile || w.kvEvents == "" || w.kind == "trtllm" || !isOff || isReported {
			return Finding{}, false
		}
		return Finding{
			What:   fmt.Sprintf("its kvEvents is %q, and its engine reports that it publishes none", w.kvEvents),
			Why:    "the router estimates its cache from the requests that were sent there",
			Remedy: startEvents,
		}, true
	})
}
