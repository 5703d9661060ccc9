package xds

import (
	"slices"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/stator-project/stator/internal/fleet"
)

// Each update of a cluster's endpoints makes Envoys rebuild its load balancer. So on average there is at most one update of a
// cluster in interval. Changes of health and membership may use burst updates without a wait, so that a new worker is used at once,
// and a dead one is not. Changes of weights alone wait until interval has passed since the last update, and so leave the burst to
// the others. A cluster does not wait for another one.
const (
	interval = time.Second
	burst    = 4
)

// change is the difference of a pool's endpoints from the endpoints that Envoys have.
type change uint8

const (
	unchanged change = iota
	newWeights
	newHealth // or other members
)

// pool is the endpoints of one model as Envoys have them. The caller passes the time.
type pool struct {
	model     string
	seen      []*fleet.Worker // in the last snapshot
	published []*fleet.Worker // in the assignment that Envoys have
	leavers   *leavers
	left      []Leaving // in the assignment that Envoys have
	again     bool      // the assignment must be published whatever the workers: it is new, or settings or nudges have changed
	failed    string    // why the last assignment was not published; empty if it was
	nudges    int       // how often the content of the cluster changed

	last time.Time // of the last update
	full time.Time // when the whole burst may be used again
}

func newPool(model string) *pool { return &pool{model: model, leavers: newLeavers(), again: true} }

// observe compares the workers of a snapshot with the workers that Envoys have, and returns when the difference may be
// published. The slice must not change later. Zero means that there is no difference, and that none follows without a change of
// the fleet.
func (p *pool) observe(workers []*fleet.Worker, now time.Time) (due time.Time) {
	if !slices.EqualFunc(p.seen, workers, func(a, b *fleet.Worker) bool { return a.Address == b.Address }) {
		p.leavers.update(p.model, workers, now)
	}
	p.seen = workers
	left, next := p.leavers.now(now)

	how := p.compare(workers)
	if p.again || !slices.Equal(left, p.left) {
		how = newHealth
	}
	if how == unchanged {
		return next
	}

	due = p.full.Add(-(burst - 1) * interval)
	if how == newWeights || p.failed != "" {
		due = latest(due, p.last.Add(interval))
	}
	if !next.IsZero() && next.Before(due) {
		return next
	}
	return latest(due, now)
}

// compare returns how workers differ from the workers that Envoys have. If the endpoints do not differ, it takes the new
// workers.
func (p *pool) compare(workers []*fleet.Worker) change {
	if len(workers) != len(p.published) {
		return newHealth
	}

	how := unchanged
	for i, w := range workers {
		was := p.published[i]
		switch {
		case w == was:
		case w.Address != was.Address || w.State != was.State || w.Role != was.Role:
			return newHealth
		case w.Weight != was.Weight:
			how = newWeights
		}
	}
	if how == unchanged {
		p.published = workers
	}
	return how
}

// build returns the endpoints for the workers of the last snapshot.
func (p *pool) build(s *Settings, now time.Time) (*endpointv3.ClusterLoadAssignment, error) {
	left, _ := p.leavers.now(now)
	e := buildEndpoints(p.model, p.seen, s, left)
	p.nudge(e)
	return e, e.ValidateAll()
}

// wasPublished records that Envoys get the endpoints of the last snapshot.
func (p *pool) wasPublished(now time.Time) {
	p.published = p.seen
	p.left, _ = p.leavers.now(now)
	p.again, p.failed = false, ""
	p.last = now
	p.full = latest(p.full, now).Add(interval)
}

// wasRefused records why the endpoints of the last snapshot cannot be published. Envoys keep their present endpoints.
func (p *pool) wasRefused(why string, now time.Time) {
	p.failed = why
	p.last = now
}

// nudge changes the endpoints of a cluster whose content has changed. Envoy warms a changed cluster until it gets endpoints. It
// does not ask for them again, and the cache does not send endpoints with equal content. Without a change, the cluster would wait
// for the initial fetch timeout.
func (p *pool) nudge(e *endpointv3.ClusterLoadAssignment) {
	if p.nudges == 0 || len(e.Endpoints[0].LbEndpoints) == 0 {
		return
	}
	first := e.Endpoints[0].LbEndpoints[0]
	if first.Metadata == nil {
		first.Metadata = &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{}}
	}
	// Metadata of an endpoint under an unknown name has no effect in Envoy.
	first.Metadata.FilterMetadata["stator.nudge"] = &structpb.Struct{
		Fields: map[string]*structpb.Value{"n": structpb.NewNumberValue(float64(p.nudges))},
	}
}

// latest returns the later of two times.
func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// byModel divides the workers of a fleet by their model, in the order of their names.
func byModel(f *fleet.Snapshot) map[string][]*fleet.Worker {
	out := map[string][]*fleet.Worker{}
	for _, w := range f.Workers {
		out[w.Model] = append(out[w.Model], w)
	}
	return out
}
