package kubernetes

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/stator-project/stator/discovery/kubernetes"
	"github.com/stator-project/stator/internal/plan"
)

// writerPrefix begins the field managers of planners.
const writerPrefix = "stator-planner."

// isPlanner reports whether a field manager is a planner.
func isPlanner(writer string) bool { return strings.HasPrefix(writer, writerPrefix) }

// writer returns the field manager of a number, with the term of the planner and the count of its decisions.
func (c *Connector) writer(term uint64) string {
	return fmt.Sprintf("%s%d.%d", writerPrefix, term, c.decision)
}

// termOf returns the term in a field manager; 0 if it has none.
func termOf(writer string) (term uint64) {
	_, _ = fmt.Sscanf(strings.TrimPrefix(writer, writerPrefix), "%d.", &term)
	return term
}

// trouble returns why a target cannot be read or changed now, and whether that keeps its number: refusals do, and failures that last.
//
// Workers that drain get requests again when a number is kept. A watch that was cut off for a moment must not cause that.
func (c *Connector) trouble(t *target, now time.Time) (err error, lasts bool) {
	scalers := c.autoscalers[t.Namespace]
	switch {
	case t.err != nil:
		refused := resultOf(t.err) != "error"
		return t.err, refused || errors.Is(t.err, kubernetes.ErrNoScale) || now.Sub(t.failedAt) >= troubleFor
	case scalers.err != nil:
		err := fmt.Errorf("it is not known whether an autoscaler scales %s: %w", &t.Object, scalers.err)
		return err, scalers.all == nil || now.Sub(scalers.read) >= troubleFor+scalersEvery
	case t.podsErr != nil:
		return t.podsErr, now.Sub(t.podsAt) >= troubleFor
	case t.read && t.scale.Selector == "":
		return fmt.Errorf("%s names no selector of its pods: does its controller run?", &t.Object), true
	}
	return nil, false
}

// holder returns why the planner does not set the number of a target; nil if it does.
//
// An object has a number from its creation, by kubectl, Helm or an operator. That is no wish about a running fleet, so the planner
// takes over. The subresource is another matter: whoever uses it means the number.
func (c *Connector) holder(t *target, term uint64, now time.Time) *plan.Held {
	h := &plan.Held{Model: t.Model, Role: t.Role, Replicas: t.scale.Replicas, Always: true}
	if err, lasts := c.trouble(t, now); lasts {
		h.Why = err.Error()
		return h
	}
	if !t.read {
		return nil
	}

	for _, a := range c.autoscalers[t.Namespace].all {
		if a.Scales(&t.Object) {
			h.Why = fmt.Sprintf("%s %s scales %s: delete it, or remove the target from the configuration", a.Kind, a.Name, &t.Object)
			return h
		}
	}
	switch writer := t.scale.Writer; {
	case isPlanner(writer) && termOf(writer) > term && term > 0:
		h.Why = fmt.Sprintf("a planner of the later term %d has set it", termOf(writer))
	case writer == "" || isPlanner(writer) || writer == hpaManager || !t.scale.ByScale && !t.own:
		return nil
	default:
		h.Always = false
		h.Why = fmt.Sprintf("%s has set it in %s", writer, &t.Object)
	}
	return h
}

// rollingLocked returns the targets whose pods a rollout replaces: they are of two revisions. All roles of a DisaggregatedSet roll
// together, and one of them may be a step ahead.
func (c *Connector) rollingLocked() map[*target]bool {
	type set struct{ namespace, name string }
	first, rolling := map[set]string{}, map[set]bool{}
	setOf := func(t *target, p *kubernetes.ScaledPod) set {
		if p.Set != "" {
			return set{t.Namespace, p.Set}
		}
		return set{t.Namespace, t.Kind + " " + t.Name}
	}
	for _, t := range c.targets {
		for _, p := range t.pods {
			if !p.IsReplica() || p.Revision == "" {
				continue
			}
			s := setOf(t, &p)
			if before, known := first[s]; known && before != p.Revision {
				rolling[s] = true
			}
			first[s] = p.Revision
		}
	}

	out := map[*target]bool{}
	for _, t := range c.targets {
		for _, p := range t.pods {
			out[t] = out[t] || rolling[setOf(t, &p)]
		}
	}
	return out
}

// duringRollout returns why the number of a target is not lowered while a rollout replaces its pods, and h, if another one has set it.
//
// The controller of a rollout chooses the pods that end, by their revisions. Others than those that were drained would end, with their
// requests. A greater number does no harm: the controller creates further pods.
func duringRollout(t *target, h *plan.Held) *plan.Held {
	why := fmt.Sprintf("a rollout replaces the pods of %s", &t.Object)
	switch {
	case h == nil:
		return &plan.Held{Model: t.Model, Role: t.Role, Replicas: t.scale.Replicas, Why: why, MayRise: true}
	case !h.Always:
		h.Always = true // otherwise the plan might drain workers when its own number has come as far
		h.Why += ", and " + why
	}
	return h
}

// hpaManager is the field manager of HorizontalPodAutoscalers. One that was deleted sets nothing any more.
const hpaManager = "kube-controller-manager"
