package kubernetes

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/stator-project/stator/discovery/kubernetes"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/plan"
)

// Target is an object whose replicas are the workers of a pool.
type Target struct {
	kubernetes.Object
	// Model and Role are the pool.
	Model string
	Role  fleet.Role
	// GPUs is the number of GPUs of one replica, at least 1.
	GPUs int
}

// State is the state of a target at a moment.
type State struct {
	Target
	// Read means that the target was read at least once: the other fields are the last ones that were known. Err is why they are old; empty
	// if they are not.
	Read bool
	Err  string
	// Replicas is the number that the object asks for.
	Replicas int
	// Held is why the planner does not set the number now, or does not lower it; nil if it does both. Known means that the plan was made
	// with it.
	Held  *plan.Held
	Known bool
	// Pods are all pods that are there, those included that are being deleted.
	Pods []Pod
	// Written is when a planner has set the number last; zero is never.
	Written time.Time
}

// Pod is a pod of a target.
type Pod struct {
	kubernetes.ScaledPod
	// Free means that it has no requests any more, or had its time for them: it may end if the plan drains it.
	Free bool
	// Requests is the number of its requests, as routers have booked them.
	Requests int64
}

// ChangeSet has the changes of a plan in a cluster. It is a value: it can be printed, and compared.
type ChangeSet struct {
	// Term is the term of the plan.
	Term    uint64
	Changes []Change
	// Refused are the pools whose number the planner does not set, and Waits the pools whose plan is not carried out yet.
	Refused, Waits []plan.Wait
	// Marks are the pods whose deletion cost is to change.
	Marks []Mark
}

// Change is another number of replicas for a target.
type Change struct {
	Target
	From, To int
	// Victims are the names of the pods that end, in their order. A victim that was never created has none.
	Victims []string
	// Reason is the reason of the plan.
	Reason string
}

// Mark is another deletion cost for a pod; empty is none.
type Mark struct{ Namespace, Pod, Cost string }

// Rules bound the changes.
type Rules struct {
	// MaxGPUs bounds the GPUs of all pods of the targets together, at every moment; 0 is no bound.
	MaxGPUs int
	// UpOnly lowers no number.
	UpOnly bool
}

// writeEvery is the least time between two changes of a target: controllers need a moment to create or delete pods.
const writeEvery = 5 * time.Second

// Changes returns the changes of a plan that are due at a moment. States are sorted by model and role.
//
// A target is left alone while another one sets its number, and while its state is not known. Its number then stays for the plan, too, so
// that no worker is drained for a change that does not come. Marks do not wait: a ReplicaSet must know the costs of its pods when its
// number is lowered, and reads pods apart from that.
func Changes(p *plan.Plan, states []State, rules Rules, now time.Time) (set ChangeSet) {
	set.Term = p.Term
	budget := budget{rules: rules, states: states}
	for i := range states {
		s := &states[i]
		pool := poolOf(p, &s.Target)
		wait := func(format string, args ...any) {
			set.Waits = append(set.Waits, plan.Wait{Model: s.Model, Role: s.Role, Why: fmt.Sprintf(format, args...)})
		}
		switch {
		case pool == nil:
			continue // its model was removed from the configuration a moment ago
		case s.Held != nil && !s.Held.MayRise && (s.Held.Always || !s.Known || pool.Replicas == s.Held.Replicas):
			set.Refused = append(set.Refused, plan.Wait{
				Model: s.Model, Role: s.Role, Why: fmt.Sprintf("%s is not scaled, because %s", &s.Object, s.Held.Why),
			})
			continue
		case s.Err != "":
			wait("%s cannot be scaled now: %s", &s.Object, s.Err)
			continue
		case !s.Read:
			wait("%s is not known yet", &s.Object)
			continue
		}

		drained := drainedBy(pool)
		set.Marks = append(set.Marks, marks(s, drained)...)
		change := Change{Target: s.Target, From: s.Replicas, To: s.Replicas, Reason: pool.Reason}
		why := ""
		switch {
		case pool.Replicas == s.Replicas && s.Held == nil:
			why = surplus(s, now)
		case pool.Replicas == s.Replicas: // a rollout has more pods for a while
		case now.Sub(s.Written) < writeEvery:
			why = fmt.Sprintf("%s was changed less than %v ago", &s.Object, writeEvery)
		case pool.Replicas > s.Replicas:
			change.To, why = budget.raise(s, pool.Replicas)
		case s.Held != nil && s.Held.MayRise: // the plan is older than the rollout
			why = fmt.Sprintf("%s is not lowered, because %s", &s.Object, s.Held.Why)
		case !rules.UpOnly:
			change.To, change.Victims, why = lower(s, drained, pool.Replicas)
		}
		if change.To != change.From {
			set.Changes = append(set.Changes, change)
		}
		if why != "" {
			wait("%s", why)
		}
	}
	return set
}

// poolOf returns the plan of a target's pool; nil if there is none.
func poolOf(p *plan.Plan, t *Target) *plan.Pool {
	for i := range p.Pools {
		if pool := &p.Pools[i]; pool.Model == t.Model && pool.Role == t.Role {
			return pool
		}
	}
	return nil
}

// drainedBy returns the workers that the plan of a pool drains.
func drainedBy(pool *plan.Pool) map[string]bool {
	out := map[string]bool{}
	for _, w := range pool.Workers {
		if w.Drain {
			out[w.Name] = true
		}
	}
	return out
}

// workers returns the pods of a target that stay, without further pods of the same engine.
func (s *State) workers() []*Pod {
	var all []*Pod
	for i := range s.Pods {
		if p := &s.Pods[i]; p.IsReplica() {
			all = append(all, p)
		}
	}
	return all
}

// isOrdered reports whether the pods of a target end from the highest ordinal on.
func (s *State) isOrdered() bool {
	return slices.ContainsFunc(s.Pods, func(p Pod) bool { return p.Ordinal >= 0 })
}

// marks returns the deletion costs that are to change: pods of a ReplicaSet end by it. Of several drained pods those without requests have
// the least: a lower number must not end one that is still busy.
func marks(s *State, drained map[string]bool) (all []Mark) {
	if s.isOrdered() {
		return nil
	}
	for _, p := range s.workers() {
		cost := ""
		switch {
		case drained[p.Worker] && p.Free:
			cost = kubernetes.LeastCost
		case drained[p.Worker]:
			cost = kubernetes.DrainedCost
		}
		isMarked := p.Cost == kubernetes.LeastCost || p.Cost == kubernetes.DrainedCost
		if p.Cost != cost && (cost != "" || isMarked) {
			all = append(all, Mark{p.Namespace, p.Name, cost})
		}
	}
	return all
}

// surplusAfter is how long a controller may take to delete the pods that are too many.
const surplusAfter = 30 * time.Second

// surplus returns why a target with the right number has other pods than that; empty if it has not, or not for long. The number may be set
// in the wrong object: in the Deployment that an operator makes from an object of its own, for example.
func surplus(s *State, now time.Time) string {
	n := 0
	for _, p := range s.workers() {
		if now.Sub(p.Created) >= surplusAfter {
			n++
		}
	}
	if n <= s.Replicas || now.Sub(s.Written) < surplusAfter {
		return ""
	}
	return fmt.Sprintf("%s asks for %d replicas and has %d pods: scale this object, and not one that its operator makes from it", &s.Object,
		s.Replicas, n)
}

// mostNamed bounds the pods that a sentence names.
const mostNamed = 4

// names returns the names of pods for a sentence.
func names(pods []string) string {
	slices.Sort(pods)
	out := strings.Join(pods[:min(len(pods), mostNamed)], ", ")
	if len(pods) > mostNamed {
		out += fmt.Sprintf(" and %d more", len(pods)-mostNamed)
	}
	return out
}

// String prints the set as an aligned table, a line for each change and each wait.
func (c ChangeSet) String() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "MODEL\tROLE\tOBJECT\tFROM\tTO\tENDS\tREASON")
	for i := range c.Changes {
		x := &c.Changes[i]
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%d\t%s\t%s\n", x.Model, x.Role, &x.Object, x.From, x.To, cmp.Or(strings.Join(x.Victims, ","), "-"),
			x.Reason)
	}
	for _, x := range slices.Concat(c.Refused, c.Waits) {
		fmt.Fprintf(w, "%s\t%s\t-\t-\t-\t-\t%s\n", x.Model, x.Role, x.Why)
	}
	_ = w.Flush() // writing to a strings.Builder never fails
	return b.String()
}
