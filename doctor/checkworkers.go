package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/stator-project/stator/internal/engines"
	"github.com/stator-project/stator/internal/fleet"
)

// The checks of workers that are described in a way that has no effect, or a wrong one.

// checkSameAddress finds workers that are one engine: a lease and the file may both describe it. The router has looked up the names in
// the file.
func checkSameAddress(o *observation) (found []Finding) {
	resolved := map[string]string{} // addresses by worker
	for _, r := range o.router.fleet.Ranks {
		resolved[r.Worker] = r.Address
	}

	first := map[netip.AddrPort]string{}
	for i := range o.workers {
		w := &o.workers[i]
		address, err := netip.ParseAddrPort(w.address)
		if err != nil {
			address, err = netip.ParseAddrPort(resolved[w.name])
		}
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

// checkRole finds workers that get no requests because of their role. The file cannot have one, but leases can.
func checkRole(o *observation) (found []Finding) {
	decode := map[string]bool{} // models with decode workers
	for _, r := range o.router.fleet.Ranks {
		decode[r.Model] = decode[r.Model] || r.Role == fleet.Decode.String()
	}

	named := map[string]bool{}
	for _, r := range o.router.fleet.Ranks {
		role := cmp.Or(r.Role, fleet.Aggregated.String())
		isUsed := role == fleet.Decode.String() || role == fleet.Prefill.String() && decode[r.Model] ||
			role == fleet.Aggregated.String() && !decode[r.Model]
		if isUsed || named[r.Worker] {
			continue
		}
		named[r.Worker] = true
		found = append(found, Finding{
			Subject: "worker " + r.Worker, What: fmt.Sprintf("its role is %s, so it gets no requests", role),
			Why: "where a model has workers of the role decode, these and prefill workers get its requests, and else aggregated ones",
			Remedy: fmt.Sprintf("give all workers of model %s the role aggregated, or some the role prefill and the others the role decode",
				r.Model),
		})
	}
	return found
}

// checkAdapters finds LoRA adapters that requests cannot reach: adapters that an engine serves under a name that is taken,
// and adapters of the configuration that no engine has loaded.
func checkAdapters(o *observation) []Finding {
	takenBy := map[string]string{}
	for _, m := range o.models {
		for _, name := range m.names {
			takenBy[name] = m.name
		}
	}

	found := eachAnswering(o, func(w *workerSeen, _ *modelSeen) (Finding, bool) {
		var unreachable []string
		for _, s := range w.engine.served {
			if s.Parent != "" && (takenBy[s.ID] != "" || !fleet.ValidAdapter(s.ID)) {
				unreachable = append(unreachable, s.ID)
			}
		}
		return Finding{
			What:   fmt.Sprintf("requests cannot reach %s of its engine: %q", count(len(unreachable), "adapter"), firstOf(unreachable)),
			Why:    "the configuration gives the name to a model, or it is no name that the router can use",
			Remedy: "load it under another name",
		}, len(unreachable) > 0
	})
	found = append(found, contested(o)...)
	for i := range o.models {
		found = append(found, notLoaded(o, &o.models[i])...)
	}
	return found
}

// contested finds the adapters that engines of several models list.
func contested(o *observation) []Finding {
	modelsOf := map[string][]string{} // by adapter, each model once
	for i := range o.workers {
		w := &o.workers[i]
		for _, s := range w.engine.served {
			if s.Parent != "" && !slices.Contains(modelsOf[s.ID], w.model) {
				modelsOf[s.ID] = append(modelsOf[s.ID], w.model)
			}
		}
	}

	var found []Finding
	for _, name := range slices.Sorted(maps.Keys(modelsOf)) {
		models := modelsOf[name]
		if len(models) < 2 {
			continue
		}
		slices.Sort(models)
		found = append(found, Finding{
			Subject: fmt.Sprintf("adapter %q", name),
			What:    fmt.Sprintf("engines of %s list it: %s", count(len(models), "model"), firstOf(models)),
			Why:     "its requests go to the model that had it first, and after a restart of the router perhaps to another one",
			Remedy:  "load it under another name on the engines of all models but one",
		})
	}
	return found
}

// notLoaded finds the configured adapters of a model that no engine has loaded. Engines of kinds that do not list their
// adapters may have them.
func notLoaded(o *observation, m *modelSeen) []Finding {
	served := map[string]bool{}
	asked := 0
	for i := range o.workers {
		w := &o.workers[i]
		if w.model != m.name || w.engine.err != nil {
			continue
		}
		if w.kind.AdapterPath == "" {
			return nil
		}
		asked++
		for _, s := range w.engine.served {
			served[s.ID] = true
		}
	}

	missing := slices.DeleteFunc(slices.Clone(m.adapters), func(name string) bool { return served[name] })
	if asked == 0 || len(missing) == 0 {
		return nil
	}
	return []Finding{{
		Subject: "model " + m.name,
		What: fmt.Sprintf("none of its engines has loaded %s of models[].adapters: %q",
			count(len(missing), "adapter"), firstOf(missing)),
		Why:    "requests for it are refused with 503",
		Remedy: "load it on at least one engine, or remove it from models[].adapters; adapters that engines list need no entry there",
	}}
}

// firstOf lists names for a finding: the first five, and how many more there are.
func firstOf(names []string) string {
	const most = 5
	text := strings.Join(names[:min(len(names), most)], ", ")
	if len(names) > most {
		text += fmt.Sprintf(" and %d more", len(names)-most)
	}
	return text
}

// checkEventsOff finds engines that publish no events although the configuration expects some. If the socket cannot be
// connected to, checkEventSocket reports that.
func checkEventsOff(o *observation) []Finding {
	return eachAnswering(o, func(w *workerSeen, _ *modelSeen) (Finding, bool) {
		isOff := w.engine.sourcesErr == nil && len(w.engine.sources) == 0 || w.engine.eventsOff || w.kind.Dialect == engines.NoEvents
		isReported := slices.ContainsFunc(w.sockets, func(s socketSeen) bool { return s.err != nil || s.messages > 0 })
		if !w.fromFile || w.kvEvents == "" || w.kind.Dialect == engines.TRTLLMEvents || !isOff || isReported {
			return Finding{}, false
		}
		return Finding{
			What:   fmt.Sprintf("its kvEvents is %q, and its engine publishes none", w.kvEvents),
			Why:    "the router estimates its cache from the requests that were sent there",
			Remedy: w.kind.Remedies.Events,
		}, true
	})
}
