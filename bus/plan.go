package bus

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/tinylib/msgp/msgp"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/plan"
)

const planKey = "current"

// PublishPlan replaces the cluster's plan.
func (b *Bus) PublishPlan(ctx context.Context, p plan.Plan) error {
	kv, err := b.bucket(ctx, "plan", 0)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if _, err := kv.Put(ctx, planKey, appendPlan(nil, p)); err != nil {
		return fmt.Errorf("publish plan: %w", err)
	}
	return nil
}

// WatchPlan calls apply with the plan now and at every change, until ctx ends.
func (b *Bus) WatchPlan(ctx context.Context, apply func(plan.Plan)) error {
	for ctx.Err() == nil {
		b.retry(ctx, "plan", b.watchPlanOnce(ctx, b.Back(), apply))
	}
	return nil
}

// retry says that a watch has ended, if that is an error, and waits a moment.
func (b *Bus) retry(ctx context.Context, what string, err error) {
	if err != nil && ctx.Err() == nil {
		b.cfg.Log.Warn("watch ended; trying again", "of", what, "err", err)
		_ = pause(ctx, 250*time.Millisecond) // the caller sees that ctx has ended
	}
}

func (b *Bus) watchPlanOnce(ctx context.Context, reset <-chan struct{}, apply func(plan.Plan)) error {
	kv, err := b.bucket(ctx, "plan", 0)
	if err != nil {
		return err
	}
	watch, err := kv.Watch(ctx, planKey)
	if err != nil {
		return fmt.Errorf("watch plan: %w", err)
	}
	defer func() { _ = watch.Stop() }()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-reset:
			return nil
		case entry, ok := <-watch.Updates():
			if !ok {
				return fmt.Errorf("watch plan: the watch has ended")
			}
			if entry == nil {
				continue
			}
			p, err := readPlan(entry.Value())
			if err != nil {
				b.cfg.Log.Warn("plan ignored", "err", err)
				continue
			}
			apply(p)
		}
	}
}

func appendPlan(b []byte, p plan.Plan) []byte {
	b = append(b, version)
	b = msgp.AppendArrayHeader(b, uint32(len(p.Pools)))
	for _, pool := range p.Pools {
		b = msgp.AppendArrayHeader(b, 5)
		b = msgp.AppendString(b, pool.Model)
		b = msgp.AppendUint8(b, uint8(pool.Role))
		b = msgp.AppendInt(b, pool.Replicas)
		b = msgp.AppendInt(b, pool.Ready)
		b = msgp.AppendString(b, pool.Reason)
	}
	return b
}

func readPlan(msg []byte) (p plan.Plan, err error) {
	b, err := body(msg)
	if err != nil {
		return p, err
	}
	r := &reader{b: b}
	n := read(r, msgp.ReadArrayHeaderBytes)
	for range n {
		if r.err != nil {
			break
		}
		r.array(5)
		pool := plan.Pool{
			Model: read(r, msgp.ReadStringBytes), Role: fleet.Role(read(r, msgp.ReadUint8Bytes)),
			Replicas: read(r, msgp.ReadIntBytes), Ready: read(r, msgp.ReadIntBytes), Reason: read(r, msgp.ReadStringBytes),
		}
		if r.err == nil && (pool.Role > fleet.Encode || pool.Replicas < 0 || pool.Replicas > math.MaxInt32) {
			r.err = fmt.Errorf("role %d, replicas %d make no sense", pool.Role, pool.Replicas)
		}
		p.Pools = append(p.Pools, pool)
	}
	if r.err != nil {
		return plan.Plan{}, fmt.Errorf("read plan: %w", r.err)
	}
	return p, nil
}
