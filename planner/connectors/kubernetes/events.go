package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/stator-project/stator/discovery/kubernetes"
	"github.com/stator-project/stator/internal/plan"
)

// Events are about targets and about pods, so that `kubectl describe` shows the reasons of plans:
//
//	event                  about    when
//	Scaled                 target   its number was set
//	ScaleRecommended       target   an advisory plan asks for another number than before, which is not the target's
//	NotScaled, a warning   target   the planner does not set its number; at most once in quietFor, also if the sentence changes
//	ScaleWaits             target   a plan is not carried out yet; the same
//	Draining               pod      a plan has begun to drain its worker
//
// An event about a target is also one about the InferencePool with its pods, if the process follows one, with the target's name before it:
// then `kubectl describe inferencepool` shows what happens to all its targets.

// recorder collects the events of a pass, which are written at its end. Its maps have an entry for each target, of which the configuration
// has a fixed number. Run's loop alone uses it.
type recorder struct {
	due []kubernetes.Event
	// waited is when the last event about a wait of a target was due, and advised its last recommended number.
	waited  map[kubernetes.Object]time.Time
	advised map[kubernetes.Object]int
	// paused is until when no event is written, because the last one failed.
	paused time.Time
}

const (
	// quietFor is the least time between two events about waits of a target.
	quietFor = time.Minute
	// afterError and afterRefusal are the pauses after an event that could not be written, for that reason or because of missing rights.
	afterError, afterRefusal = time.Minute, 10 * time.Minute
	// maxEvents bounds the events of a pass. Further ones are left out.
	maxEvents = 32
)

func newRecorder() recorder {
	return recorder{waited: map[kubernetes.Object]time.Time{}, advised: map[kubernetes.Object]int{}}
}

// addEvent has an event about a target, and about its InferencePool, be written in this pass.
func (c *Connector) addEvent(t *target, reason string, isWarning bool, format string, args ...any) {
	e := kubernetes.Event{
		Object: t.Object, UID: t.scale.UID, Reason: reason, Warning: isWarning, Message: fmt.Sprintf(format, args...),
	}
	c.events.due = append(c.events.due, e)
	if p := c.poolOf(t); p != nil {
		e.Object, e.UID = p.Object, p.UID
		e.Message = t.Kind + " " + t.Name + ": " + e.Message
		c.events.due = append(c.events.due, e)
	}
}

// poolOf returns the InferencePool that has a worker of the target, or the only one of its namespace while the target has no worker; nil
// for none. An event about an object without a UID would be shown nowhere.
func (c *Connector) poolOf(t *target) *kubernetes.PoolMembers {
	if c.cfg.Pools == nil {
		return nil
	}
	pools := slices.DeleteFunc(c.cfg.Pools(), func(p kubernetes.PoolMembers) bool { return p.UID == "" || p.Namespace != t.Namespace })
	workers := map[string]bool{}
	for i := range t.state.Pods {
		workers[t.state.Pods[i].Worker] = true
	}
	for i := range pools {
		if slices.ContainsFunc(pools[i].Workers, func(name string) bool { return workers[name] }) {
			return &pools[i]
		}
	}
	if len(pools) == 1 {
		return &pools[0]
	}
	return nil
}

// recordWaits adds events about the targets for which a plan is not carried out. A wait is normal: a drain takes as long as the answers of
// its worker. Only a target that the planner leaves alone gets a warning.
func (c *Connector) recordWaits(set *ChangeSet, now time.Time) {
	for i, w := range slices.Concat(set.Refused, set.Waits) {
		isRefused := i < len(set.Refused)
		reason := "ScaleWaits"
		if isRefused {
			reason = "NotScaled"
		}
		for _, t := range c.targets {
			if t.Model == w.Model && t.Role == w.Role && t.read && now.Sub(c.events.waited[t.Object]) >= quietFor {
				c.events.waited[t.Object] = now
				c.addEvent(t, reason, isRefused, "%s", w.Why)
			}
		}
	}
}

// recordDrains adds events about the pods whose workers are drained since this pass. A plan that is in force again after a pause, or after
// a start of this process, begins its drains again, so their events come again, too.
func (c *Connector) recordDrains(p *plan.Plan, states []State, now time.Time) {
	if p == nil {
		return
	}
	for i := range states {
		pool := poolOf(p, &states[i].Target)
		if pool == nil {
			continue
		}
		for _, pod := range states[i].Pods {
			if since, isDrained := c.drained[pod.Worker]; isDrained && since.Equal(now) {
				c.events.due = append(c.events.due, kubernetes.Event{
					Object: kubernetes.Object{APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name}, UID: pod.UID,
					Reason: "Draining", Message: "gets no more requests, because fewer workers are needed: " + pool.Reason,
				})
			}
		}
	}
}

// Advise has Run record the numbers of a plan that is not carried out, as events about the targets. It replaces Apply for advisory plans,
// so no worker is drained for them. A plan that comes before the last one was recorded replaces it.
func (c *Connector) Advise(p plan.Plan) {
	c.mu.Lock()
	c.advice = &p
	c.mu.Unlock()
	c.changed()
}

// recordAdvice adds events about recommended numbers that have changed.
func (c *Connector) recordAdvice() {
	c.mu.Lock()
	p := c.advice
	c.advice = nil
	c.mu.Unlock()
	if p == nil {
		return
	}

	for _, t := range c.targets {
		pool := poolOf(p, &t.Target)
		if pool == nil || !t.read {
			continue
		}
		// A planner that has just begun does not know its earlier recommendations, and repeats no number that the target has.
		last, isKnown := c.events.advised[t.Object]
		if !isKnown {
			last = t.scale.Replicas
		}
		if pool.Replicas != last {
			c.addEvent(t, "ScaleRecommended", false, "%d replicas in place of %d: %s", pool.Replicas, t.scale.Replicas, pool.Reason)
		}
		c.events.advised[t.Object] = pool.Replicas
	}
}

// writeEvents writes the events of a pass. The first one that fails ends that for a while: events never delay the changes for long.
func (c *Connector) writeEvents(ctx context.Context, now time.Time) {
	due := c.events.due[:min(len(c.events.due), maxEvents)]
	c.events.due = nil
	if now.Before(c.events.paused) {
		return
	}
	for i := range due {
		err := c.cfg.Client.Record(ctx, &due[i])
		if err == nil {
			continue
		}
		var status *kubernetes.Status
		if pause := afterError; ctx.Err() == nil {
			if errors.As(err, &status) && status.Code == http.StatusForbidden {
				pause = afterRefusal
			}
			c.events.paused = now.Add(pause)
			c.cfg.Log.Warn("no event written; trying again later", "pause", pause, "err", err)
		}
		return
	}
}
