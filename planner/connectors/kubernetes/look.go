package kubernetes

import (
	"context"
	"sync"
	"time"

	"github.com/stator-project/stator/discovery/kubernetes"
)

// look reads a target, if that is due.
//
// It makes two requests, for the number and for who has set it, and a third one until a trial has succeeded. Watches deliver the pods.
func (c *Connector) look(ctx context.Context, t *target, watches *sync.WaitGroup, now time.Time) {
	c.lookForScalers(ctx, t.Namespace, now)
	if now.Before(t.next) {
		return
	}
	scale, err := c.cfg.Client.Scale(ctx, &t.Object)
	if err == nil && !t.allowed {
		// A trial finds missing rights before a worker is drained for a change that would be refused.
		err = c.cfg.Client.SetScale(ctx, &t.Object, scale.Replicas, scale.Version, c.writer(0), true)
		t.allowed = err == nil
	}
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		c.metrics.errors.Inc()
		c.fail(t, err, now)
		return
	}

	if t.err != nil {
		c.cfg.Log.Info("the target can be scaled again", "target", t.Object.String())
	}
	t.err = nil
	t.retry.Reset()
	t.next = now.Add(readEvery)
	t.scale, t.read = scale, true
	if isPlanner(scale.Writer) {
		t.own = true
	}
	if scale.Selector != t.selector && scale.Selector != "" {
		c.follow(ctx, t, watches)
	}
	c.lookForMissing(ctx, t, now)
}

// fail records why a target cannot be read or changed, and when it is tried again. An error that comes again and again is logged once.
func (c *Connector) fail(t *target, err error, now time.Time) {
	if t.err == nil || t.err.Error() != err.Error() {
		c.cfg.Log.Warn("target cannot be scaled; it keeps its number", "target", t.Object.String(), "err", err)
	}
	if t.err == nil {
		t.failedAt = now
	}
	t.err = err
	t.next = now.Add(t.retry.Next())
}

// lookForScalers lists the autoscalers of a namespace, if that is due. An object does not show which autoscaler it has.
func (c *Connector) lookForScalers(ctx context.Context, namespace string, now time.Time) {
	s := c.autoscalers[namespace]
	if s == nil {
		s = &scalers{}
		c.autoscalers[namespace] = s
	}
	if now.Before(s.next) {
		return
	}
	s.next = now.Add(scalersEvery)
	ctx, stop := context.WithTimeout(ctx, scalersEvery)
	defer stop()
	all, err := c.cfg.Client.Autoscalers(ctx, namespace)
	s.err = err
	if err != nil {
		s.next = now.Add(time.Second)
		return
	}
	s.all, s.read = append([]kubernetes.Autoscaler{}, all...), now
}

// follow watches the pods of a target, by another selector than before. A selector changes when an object is deleted and created again, and
// appears when its controller reports it for the first time.
func (c *Connector) follow(ctx context.Context, t *target, watches *sync.WaitGroup) {
	t.stop()
	t.selector = t.scale.Selector
	inner, stop := context.WithCancel(ctx)
	t.stop = stop

	pods := map[string]kubernetes.ScaledPod{}
	c.mu.Lock()
	t.pods, t.listed = pods, false
	c.mu.Unlock()
	// A watch that has been stopped may change its own pods once more, and nothing else.
	locked := func(set func()) {
		c.mu.Lock()
		if inner.Err() == nil {
			set()
		}
		c.mu.Unlock()
		c.changed()
	}
	watches.Go(func() {
		c.cfg.Client.FollowScaledPods(inner, t.Namespace, t.selector, c.cfg.Home, func(name string, p *kubernetes.ScaledPod) {
			locked(func() {
				delete(pods, name)
				if p != nil {
					pods[name] = *p
				}
			})
		}, func() { locked(func() { t.listed = true }) }, func(err error) {
			locked(func() {
				if t.podsErr == nil {
					t.podsAt = time.Now()
				}
				t.podsErr = err
			})
		})
	})
}

// lookForMissing finds out why pods are missing for long. A pod that a quota refuses does not exist, so no pod could show the reason: the
// controller that could not create it writes an event.
func (c *Connector) lookForMissing(ctx context.Context, t *target, now time.Time) {
	c.mu.Lock()
	there := 0
	for _, p := range t.pods {
		if p.IsReplica() {
			there++
		}
	}
	if isMissing := t.listed && there < t.scale.Replicas; !isMissing {
		t.uncreated = ""
		t.lacksFrom, t.missing = time.Time{}, time.Time{}
	} else if t.lacksFrom.IsZero() {
		t.lacksFrom, t.missing = now, now
	}
	c.mu.Unlock()

	if t.missing.IsZero() || now.Sub(t.missing) < missingFor {
		return
	}
	t.missing = now // asked again after another while
	ctx, stop := context.WithTimeout(ctx, scalersEvery)
	defer stop()
	why, err := c.cfg.Client.Uncreated(ctx, &t.Object)
	if err != nil {
		why = "its events cannot be read: " + err.Error()
	}
	c.mu.Lock()
	t.uncreated = why
	c.mu.Unlock()
}

// missingFor is how long pods may be missing before events are read, and between two times.
const missingFor = 5 * time.Second
