package status

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/stator-project/stator/doctor"
)

// join makes one status of the answers of all ports.
func join(all []pages) Status {
	s := Status{
		Parts: []Part{}, Envoys: []Envoy{}, Workers: []Worker{}, Emitters: []Emitter{}, Pools: []Pool{}, Stores: []Store{},
		Findings: []doctor.Finding{},
	}
	for i := range all {
		s.addPart(&all[i])
	}
	for i := range all {
		s.addEnvoys(&all[i])
		s.addWorkers(&all[i])
		s.addEmitters(&all[i])
		s.addStores(&all[i])
	}
	for i := range all {
		s.addEvents(&all[i], all)
	}
	s.addPlan(all)
	slices.SortFunc(s.Envoys, func(a, b Envoy) int { return cmp.Compare(a.Name, b.Name) })
	return s
}

// addPart adds the process of a port, and its faults.
func (s *Status) addPart(p *pages) {
	part := Part{Address: p.address, Runs: p.runs(), State: "ready", Reason: p.reason}
	switch {
	case p.err != nil:
		part.State, part.Reason = "silent", p.err.Error()
		s.find("part "+p.address, "its admin port cannot be read: "+part.Reason, "nothing is known of it",
			"start it, or leave its address out")
	case !p.ready:
		part.State = "not ready"
		s.find("part "+p.address, "it is not ready: "+p.reason, "it serves nothing", "remove the reason")
	case p.reason != "":
		part.State = "degraded"
		s.find("part "+p.address, "it is degraded: "+p.reason, "it serves with less than it should have", "remove the reason")
	}
	part.Version = p.metrics.Label("stator_build_info", "version")
	for _, m := range p.metrics {
		if m.Name == "stator_bus_connected" && (part.Bus == "" || m.Value == 0) {
			part.Bus = map[bool]string{true: "connected", false: "away"}[m.Value != 0]
		}
	}

	if c := p.config; c != nil {
		switch {
		case c.Error != "":
			part.Config = "refused"
			s.find("part "+p.address, "its configuration file is refused: "+c.Error, "the last good content stays in force",
				"correct the file")
		case len(c.Pending) > 0:
			part.Config = "restart needed"
		default:
			part.Config = "in force"
		}
	}
	for _, r := range p.feed {
		part.Ranks++
		if r.State == exact {
			part.Exact++
		}
	}
	s.Parts = append(s.Parts, part)
}

const (
	exact  = "exact"   // a router has the cache as its engine does
	cutOff = "cut off" // the reader of events has no connection
)

// runs returns the parts that a process runs, by the pages that it serves.
func (p *pages) runs() []string {
	runs := []string{}
	for _, part := range []struct {
		name string
		here bool
	}{
		{"router", p.envoys != nil}, {"control plane", p.xds != nil}, {"planner", p.plan != nil}, {"agent", p.agent != nil},
		{"store", p.stores != nil && len(*p.stores) > 0},
	} {
		if part.here {
			runs = append(runs, part.name)
		}
	}
	return runs
}

// addEnvoys adds the Envoys of a control plane, and those that a router knows besides.
func (s *Status) addEnvoys(p *pages) {
	if p.xds != nil {
		for _, f := range p.xds.Failures {
			s.find("control plane "+p.address, f.Part+" cannot be built: "+f.Error, "Envoys keep its last good version",
				"correct the configuration")
		}
		for _, seen := range p.xds.Envoys {
			e := s.envoy(seen.Envoy)
			e.Version = seen.Version
			for _, state := range []*string{&e.Listeners, &e.Routes, &e.Clusters, &e.Endpoints} {
				*state = NotSent
			}
			for i := range seen.Types {
				s.addType(e, &seen.Types[i])
			}
		}
	}
	if p.envoys != nil {
		for _, seen := range *p.envoys {
			s.envoy(seen.Envoy).EndsBy = seen.Source
		}
	}
}

// addType sets the state of one type of an Envoy's resources.
func (s *Status) addType(e *Envoy, t *xdsType) {
	state := Stale
	if t.Accepted != nil && *t.Accepted == t.Sent {
		state = Synced
	}
	switch t.Type {
	case "listener":
		e.Listeners = state
	case "route":
		e.Routes = state
	case "cluster":
		e.Clusters = state
	case "endpoint":
		e.Endpoints = state
	default:
		return
	}

	switch {
	case state == Synced:
	case t.Refusal != nil && t.Refusal.Version == t.Sent:
		s.find("Envoy "+e.Name, fmt.Sprintf("it refuses the %ss of version %s: %s", t.Type, t.Sent, t.Refusal.Message),
			"it keeps the version before", "correct what its message names")
	default:
		s.find("Envoy "+e.Name, fmt.Sprintf("it has not accepted the %ss of version %s yet", t.Type, t.Sent),
			"it works with the version before", "ask again; if it stays so, read the log of the Envoy")
	}
}

// envoy returns the Envoy of a name, which is added if it is new.
func (s *Status) envoy(name string) *Envoy {
	i := slices.IndexFunc(s.Envoys, func(e Envoy) bool { return e.Name == name })
	if i < 0 {
		i = len(s.Envoys)
		s.Envoys = append(s.Envoys, Envoy{Name: name})
	}
	return &s.Envoys[i]
}

// addWorkers adds the ranks that a router knows. Of a rank that several routers know the load of the first one counts, and the state
// of the cache the worst.
func (s *Status) addWorkers(p *pages) {
	if p.fleet == nil || p.envoys == nil {
		return // another process than a router knows no caches
	}
	for _, r := range p.fleet.Ranks {
		if s.worker(r.Worker, r.Rank) == nil {
			s.Workers = append(s.Workers, Worker{
				Name: r.Worker, Rank: r.Rank, Model: r.Model, Role: r.Role, State: r.State, Health: r.Health, Place: r.Place,
				Booked: r.Booked, Running: r.Running, Waiting: r.Waiting, KVUsage: r.KVUsage,
			})
		}
	}
	for _, r := range p.feed {
		w := s.worker(r.Worker, r.Rank)
		if w != nil && (w.Cache == "" || w.Cache == exact) {
			w.Cache, w.Reason = r.State, r.Reason
			w.Blocks = r.Blocks
		}
	}
}

// addEmitters adds the caches outside engines that a router reads. Of one that several routers read the worst state counts.
func (s *Status) addEmitters(p *pages) {
	if p.fleet == nil {
		return
	}
	for i := range p.fleet.Emitters {
		e := &p.fleet.Emitters[i]
		seen := Emitter{e.Name, e.Model, e.Address, e.Place, e.CacheState, e.CacheReason, e.Blocks}
		if !e.Connected {
			seen.State, seen.Reason = cutOff, ""
		}
		at := slices.IndexFunc(s.Emitters, func(o Emitter) bool { return o.Name == e.Name && o.Model == e.Model })
		switch {
		case at < 0:
			s.Emitters = append(s.Emitters, seen)
		case s.Emitters[at].State == exact:
			s.Emitters[at] = seen
		}
	}
}

// worker returns a rank, or nil if it is not there.
func (s *Status) worker(name string, rank int) *Worker {
	i := slices.IndexFunc(s.Workers, func(w Worker) bool { return w.Name == name && w.Rank == rank })
	if i < 0 {
		return nil
	}
	return &s.Workers[i]
}

// addEvents adds whether an agent reads the events of its engines, and how far behind it the routers are.
func (s *Status) addEvents(p *pages, all []pages) {
	if p.agent == nil {
		return
	}
	for _, e := range *p.agent {
		for _, r := range e.Ranks {
			w := s.worker(e.Worker, r.Rank)
			if w == nil || r.Source == nil {
				continue
			}
			w.Events = map[bool]string{true: "connected", false: cutOff}[r.Source.Connected]
			for i := range all {
				for _, f := range all[i].feed {
					if f.Worker == e.Worker && f.Rank == r.Rank {
						lag := behind(r.Next, f.Seq)
						w.Lag = new(max(lag, *cmp.Or(w.Lag, new(uint64))))
					}
				}
			}
		}
	}
}

// behind returns how many batches a router lacks, if the agent expects the batch next and the router has applied those up to seq. The
// router may be ahead: its page was read later.
func behind(next uint64, seq *uint64) uint64 {
	have := uint64(0)
	if seq != nil {
		have = *seq + 1
	}
	return next - min(next, have)
}

// addPlan adds the plan of the planner with the highest term.
func (s *Status) addPlan(all []pages) {
	var newest *planPage
	for i := range all {
		if p := all[i].plan; p != nil && (newest == nil || p.Term > newest.Term) {
			newest = p
		}
	}
	if newest == nil {
		return
	}
	s.Pools = append(s.Pools, newest.Pools...)
	for _, p := range s.Pools {
		if p.Ready < p.Replicas {
			s.find("pool "+p.Model+" "+p.Role, fmt.Sprintf("%d of the %d workers that the plan wants are ready", p.Ready, p.Replicas),
				"the others serve its requests alone", "see the state of its workers; the log of their agents has more")
		}
	}
}

// addStores adds the tiers of the stores of a node.
func (s *Status) addStores(p *pages) {
	if p.stores == nil {
		return
	}
	for _, store := range *p.stores {
		slots := &store.Slots
		used := slots.Complete + slots.Active + slots.Inactive
		s.Stores = append(s.Stores, Store{p.address, store.Model, "host", store.State, store.Reason, used, used + slots.Reset})
		if store.State == "failing" {
			s.find("store of "+store.Model+" at "+p.address, "it fails: "+store.Reason, "its blocks are computed again",
				"remove the reason")
		}
		for _, t := range store.Tiers {
			s.Stores = append(s.Stores, Store{p.address, store.Model, t.Tier, t.Health, t.Reason, t.Blocks, t.Room})
			if t.Health == "failing" {
				s.find("tier "+t.Tier+" of "+store.Model+" at "+p.address, "it fails: "+t.Reason, "its blocks are computed again",
					"remove the reason")
			}
		}
	}
}

// find adds a finding.
func (s *Status) find(subject, what, why, remedy string) {
	s.Findings = append(s.Findings, doctor.Finding{Check: "status", Subject: subject, What: what, Why: why, Remedy: remedy})
}
