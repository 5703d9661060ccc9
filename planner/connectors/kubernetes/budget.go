package kubernetes

import (
	"fmt"
	"slices"
)

// budget counts the GPUs of all targets while changes are made. Targets that shrink count in full until their pods are gone, so no order of
// changes exceeds it, not even for a moment.
type budget struct {
	rules  Rules
	states []State
	added  int // by changes of this set
}

// held returns the GPUs that a target holds or may get: of its pods, until they are gone, and of pods that will be created.
func (s *State) held() int {
	staying := len(s.workers())
	ending := map[string]bool{}
	for i := range s.Pods {
		p := &s.Pods[i]
		leaderStays := slices.ContainsFunc(s.Pods, func(q Pod) bool { return q.IsReplica() && q.Group == p.Group })
		switch {
		case p.Group != "" && !leaderStays:
			ending["group "+p.Group] = true // an engine on several nodes holds GPUs until its last pod is gone
		case p.Group == "" && p.Terminating:
			ending[p.Name] = true
		}
	}
	return s.GPUs * (len(ending) + max(s.Replicas, staying))
}

// raise returns how many of the wanted replicas the budget has room for, and why the others wait.
func (b *budget) raise(s *State, wanted int) (to int, why string) {
	if b.rules.MaxGPUs == 0 {
		return wanted, ""
	}
	used := b.added
	var ending []string
	for i := range b.states {
		o := &b.states[i]
		if !o.Read || o.Err != "" {
			return s.Replicas, fmt.Sprintf("%s cannot be read, so the GPUs of the budget cannot be counted", &o.Object)
		}
		used += o.held()
		for _, p := range o.Pods {
			if p.Terminating {
				ending = append(ending, p.Name)
			}
		}
	}

	to = min(wanted, s.Replicas+max(0, b.rules.MaxGPUs-used)/s.GPUs)
	b.added += (to - s.Replicas) * s.GPUs
	if to < wanted {
		why = fmt.Sprintf("%s waits for GPUs: the budget is %d, and pods have or get %d", &s.Object, b.rules.MaxGPUs, used)
		if len(ending) > 0 {
			why += ", some of them until these are gone: " + names(ending)
		}
	}
	return to, why
}
