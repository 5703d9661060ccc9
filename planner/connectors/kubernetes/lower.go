package kubernetes

import (
	"fmt"
	"slices"
	"strings"

	"github.com/stator-project/stator/discovery/kubernetes"
)

// lower returns how far the number can fall now, the pods that end by that, and why the rest waits.
//
// A ReplicaSet deletes pods that are not ready before all others, whatever their cost is. One that was ready and still has requests would
// lose them, so the number stays until it is ready again or they have ended. A pod that only starts has nothing to lose.
func lower(s *State, drained map[string]bool, wanted int) (to int, victims []string, why string) {
	pods := s.workers()
	var ready, busy []*Pod
	for _, p := range pods {
		switch {
		case !drained[p.Worker]:
			if !s.isOrdered() && !p.Ready && p.Requests > 0 {
				return s.Replicas, nil, fmt.Sprintf("%s is not ready and has requests, and its ReplicaSet would delete it first", p.Name)
			}
		case p.Free && (s.isOrdered() || p.Cost == kubernetes.LeastCost):
			ready = append(ready, p)
		default:
			busy = append(busy, p)
		}
	}

	if s.isOrdered() {
		to, victims = lowerOrdered(s, ready, wanted)
	} else {
		// Replicas without a pod end first, then pods that are not ready, then those with the least cost.
		slices.SortFunc(ready, func(a, b *Pod) int {
			switch {
			case a.Ready == b.Ready:
				return strings.Compare(a.Name, b.Name)
			case a.Ready:
				return 1
			}
			return -1
		})
		// Pods that are too many already are the first of those, and about to be deleted.
		ready = ready[min(len(ready), max(0, len(pods)-s.Replicas)):]
		missing := max(0, s.Replicas-len(pods))
		to = max(wanted, s.Replicas-missing-len(ready))
		for _, p := range ready[:max(0, s.Replicas-missing-to)] {
			victims = append(victims, p.Name)
		}
	}
	if to > wanted {
		var waits []string
		for _, p := range busy {
			waits = append(waits, p.Name)
		}
		why = fmt.Sprintf("%s waits until workers are drained", &s.Object)
		if len(waits) > 0 {
			why = fmt.Sprintf("%s waits until the requests of these have ended: %s", &s.Object, names(waits))
		}
	}
	return to, victims, why
}

// lowerOrdered returns how far the number of an ordered target can fall. A number n ends all pods with the ordinal n, or a higher one. So
// it falls as long as the pod at the top may end, or is missing.
func lowerOrdered(s *State, ready []*Pod, wanted int) (to int, victims []string) {
	at := map[int]*Pod{}
	for _, p := range s.workers() {
		at[p.Ordinal] = p
	}
	for to = s.Replicas; to > wanted; to-- {
		p := at[to-1]
		if p == nil {
			continue
		}
		if !slices.Contains(ready, p) {
			break
		}
		victims = append(victims, p.Name)
	}
	return to, victims
}
