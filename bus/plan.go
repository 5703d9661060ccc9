package bus

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/stator-project/stator/bus/busv1"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/plan"
)

// planBucket is the key-value bucket of the cluster's plan, which is its only entry.
const (
	planBucket = "plan"
	planKey    = "current"
)

// publishTime is the longest time that writing the plan may take. A planner makes the next one after some seconds, so there is no
// use in waiting longer for a server that is away.
const publishTime = 5 * time.Second

// maxStartUp bounds the time of a start in a plan, in milliseconds: a planner stops waiting for a worker after four times the hour that a
// configuration may name, and routers add the time to their clock.
const maxStartUp = 24 * 3600 * 1000

// fencedPlan is the cluster's plan. One of an earlier release has no term, which is 0.
var fencedPlan = fenced{planBucket, planKey, "plan", func(value []byte) uint64 {
	var received busv1.Plan
	if decode(&received, value) != nil {
		return 0
	}
	return received.Term
}}

// PublishPlan replaces the cluster's plan. It waits until the server has stored it. A plan of an earlier term than the present one is
// refused with ErrEarlierTerm.
func (b *Bus) PublishPlan(ctx context.Context, p plan.Plan) error {
	return b.putFenced(ctx, &fencedPlan, p.Term, encode(planMessage(p)))
}

// WatchPlan calls apply with the plan now and at every change, until ctx ends. After the server was away
// apply gets the plan again, if it is still there.
func (b *Bus) WatchPlan(ctx context.Context, apply func(plan.Plan)) error {
	b.watch(ctx, planBucket, allKeys, 0, &planWatch{bus: b, apply: apply})
	return nil
}

// planWatch is the watcher of the plan.
type planWatch struct {
	lasting
	bus   *Bus
	apply func(plan.Plan)
}

// entry applies a new plan.
func (w *planWatch) entry(entry jetstream.KeyValueEntry) {
	if entry == nil || entry.Operation() != jetstream.KeyValuePut {
		return
	}

	var received busv1.Plan

	p, err := decodePlan(&received, entry.Value())
	if err == nil {
		err = checkTerm(p.Term, time.Now())
	}
	if w.bus.reader.accept(kindPlan, planBucket, &received, err) {
		w.apply(p)
	}
}

// planMessage returns the message of a plan. One of ten thousand workers with weights has about 240 KB, of which a bucket's value may
// have 512: see maxValue. Plans of pools whose algorithm is "configured" list no workers.
func planMessage(p plan.Plan) *busv1.Plan {
	m := &busv1.Plan{Term: p.Term}
	for i := range p.Pools {
		pool := &p.Pools[i]
		out := &busv1.Pool{
			Model: pool.Model, Role: uint32(pool.Role), Replicas: uint32(pool.Replicas), Ready: uint32(pool.Ready), Reason: pool.Reason,
			Unknown: pool.Unknown, StartUpMilliseconds: uint64(max(0, pool.StartUp.Milliseconds())),
		}
		for _, w := range pool.Workers {
			out.Workers = append(out.Workers, &busv1.PlannedWorker{Name: w.Name, Weight: w.Weight, Drain: w.Drain})
		}
		m.Pools = append(m.Pools, out)
	}
	return m
}

// decodePlan returns the plan in data, by way of the empty message m.
func decodePlan(m *busv1.Plan, data []byte) (plan.Plan, error) {
	if err := decode(m, data); err != nil {
		return plan.Plan{}, err
	}

	p := plan.Plan{Term: m.Term}
	for i, pool := range m.Pools {
		if pool.Role > uint32(fleet.Encode) {
			return plan.Plan{}, fmt.Errorf("pool %d: role is %d: it must be at most %d", i, pool.Role, fleet.Encode)
		}
		if pool.Replicas > math.MaxInt32 || pool.Ready > math.MaxInt32 {
			return plan.Plan{}, fmt.Errorf("pool %d: %d replicas, %d ready: there must be at most %d", i, pool.Replicas, pool.Ready,
				math.MaxInt32)
		}
		if pool.StartUpMilliseconds > maxStartUp {
			return plan.Plan{}, fmt.Errorf("pool %d: a start takes %d ms: there must be at most %d", i, pool.StartUpMilliseconds,
				maxStartUp)
		}
		workers, err := decodePlanned(pool.Workers)
		if err != nil {
			return plan.Plan{}, fmt.Errorf("pool %d: %w", i, err)
		}
		p.Pools = append(p.Pools, plan.Pool{
			Model: pool.Model, Role: fleet.Role(pool.Role), Replicas: int(pool.Replicas), Ready: int(pool.Ready), Reason: pool.Reason,
			Workers: workers, Unknown: pool.Unknown, StartUp: time.Duration(pool.StartUpMilliseconds) * time.Millisecond,
		})
	}
	return p, nil
}

// decodePlanned returns the settings of a plan for workers. Their names and weights reach routers and Envoys, so a plan with one
// that is out of range is refused as a whole: the last one stays in force.
func decodePlanned(list []*busv1.PlannedWorker) ([]plan.Planned, error) {
	var out []plan.Planned
	for _, w := range list {
		if !fleet.ValidWorkerName(w.Name) {
			return nil, fmt.Errorf("worker name %.80q is not valid", w.Name)
		}
		if w.Weight < 1 || w.Weight > fleet.MaxWeight {
			return nil, fmt.Errorf("worker %s: weight is %d: it must lie between 1 and %d", w.Name, w.Weight, fleet.MaxWeight)
		}
		out = append(out, plan.Planned{Name: w.Name, Weight: w.Weight, Drain: w.Drain})
	}
	return out, nil
}
