package kubernetes

import (
	"cmp"
	"context"
	"net/url"
	"slices"
	"strings"
	"time"
)

// ScaledPod is a pod of an object that is scaled, as a planner sees it.
type ScaledPod struct {
	Namespace, Name, UID string
	// Worker is the name of its engine among workers; see [Endpoint]. A pod has one engine.
	Worker  string
	Created time.Time
	// Ready means that its kubelet reports it as ready, and Terminating that it is being deleted.
	Ready, Terminating bool
	// Follows means that it is a further pod of an engine on several nodes, which is no worker. Group is its engine, of a LeaderWorkerSet.
	Follows bool
	Group   string
	// Revision is the revision of the template that the pod was made from; empty if no label names it. Set is its DisaggregatedSet, whose
	// roles roll together; empty for none.
	Revision, Set string
	// Ordinal is its number in a StatefulSet, whose pods end from the highest on; -1 for a pod that has none.
	Ordinal int
	// Cost is its deletion cost; empty if it has none.
	Cost string
	// Trouble is why it does not start, as its scheduler or its kubelet reports it; empty if nothing is wrong.
	Trouble string
}

// IsReplica reports whether the pod counts as a replica of its object: it has an engine's server, and is not being deleted.
func (p *ScaledPod) IsReplica() bool { return !p.Follows && !p.Terminating }

// scaledPod has the fields of a pod that a planner reads: more than a router does.
type scaledPod struct {
	Metadata struct {
		metadata
		Annotations       map[string]string `json:"annotations"`
		CreationTimestamp time.Time         `json:"creationTimestamp"`
		OwnerReferences   []struct {
			Kind       string `json:"kind"`
			Controller bool   `json:"controller"`
		} `json:"ownerReferences"`
	} `json:"metadata"`
	Status struct {
		Phase      string `json:"phase"`
		Conditions []struct {
			Type    string `json:"type"`
			Status  string `json:"status"`
			Reason  string `json:"reason"`
			Message string `json:"message"`
		} `json:"conditions"`
		InitContainerStatuses []containerStatus `json:"initContainerStatuses"`
		ContainerStatuses     []containerStatus `json:"containerStatuses"`
	} `json:"status"`
}

// containerStatus has why a container waits, such as ImagePullBackOff and CrashLoopBackOff. ContainerCreating is no trouble.
type containerStatus struct {
	State struct {
		Waiting struct {
			Reason  string `json:"reason"`
			Message string `json:"message"`
		} `json:"waiting"`
	} `json:"state"`
}

func (p scaledPod) meta() metadata { return p.Metadata.metadata }

// maxTrouble bounds the characters of a reason. It becomes part of a sentence.
const maxTrouble = 200

// hasEnded reports whether the pod keeps its object alone: evicted pods do. It has no GPU, and does not come back.
func (p *scaledPod) hasEnded() bool {
	return p.Status.Phase == "Succeeded" || p.Status.Phase == "Failed"
}

// state returns the pod as a planner sees it. home is the namespace whose pods have short names.
//
//	condition PodScheduled is false      the message of the scheduler, such as "Insufficient nvidia.com/gpu"
//	a container waits with an error      its reason and message, such as "ImagePullBackOff: ..."
//	neither                              no trouble, however long it takes
func (p *scaledPod) state(home string) ScaledPod {
	m := &p.Metadata
	out := ScaledPod{
		Namespace: m.Namespace, Name: m.Name, UID: m.UID, Worker: m.workerName("", home), Created: m.CreationTimestamp,
		Terminating: m.DeletionTimestamp != "",
		Follows:     !m.leads(), Group: m.Labels["leaderworkerset.sigs.k8s.io/group-index"],
		Revision: m.templateRevision(), Set: m.Labels["disaggregatedset.x-k8s.io/name"],
		Cost: m.Annotations[costAnnotation], Ordinal: -1,
	}
	if out.Group != "" { // two revisions of a DisaggregatedSet's role are two LeaderWorkerSets
		out.Group = m.Labels["leaderworkerset.sigs.k8s.io/name"] + "/" + out.Group
	}

	for _, o := range m.OwnerReferences {
		if o.Controller && o.Kind == "StatefulSet" {
			out.Ordinal = ordinal(m.Name)
		}
	}
	for _, c := range p.Status.Conditions {
		switch {
		case c.Type == "Ready":
			out.Ready = c.Status == "True"
		case c.Type == "PodScheduled" && c.Status == "False":
			out.Trouble = cmp.Or(c.Message, c.Reason)
		}
	}
	for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		w := &c.State.Waiting
		if strings.HasPrefix(w.Reason, "Err") || strings.HasSuffix(w.Reason, "BackOff") || strings.HasSuffix(w.Reason, "Error") {
			out.Trouble = strings.TrimSuffix(w.Reason+": "+w.Message, ": ")
		}
	}
	if len(out.Trouble) > maxTrouble {
		out.Trouble = strings.ToValidUTF8(out.Trouble[:maxTrouble], "") + "…"
	}
	return out
}

// ordinal returns the number at the end of the name of a StatefulSet's pod; -1 if there is none.
func ordinal(name string) int {
	digits := name[strings.LastIndexByte(name, '-')+1:]
	n := 0
	for _, d := range digits {
		if d < '0' || d > '9' || n > 1<<20 {
			return -1
		}
		n = 10*n + int(d-'0')
	}
	if digits == "" {
		return -1
	}
	return n
}

// FollowScaledPods calls apply for each pod of a selector that is there, changes, or goes, until ctx ends: then with nil. synced is called
// when all of them have been listed, and trouble with the reason why nothing arrives, and with nil when it does again. home is the
// namespace whose pods have short names.
func (c *Client) FollowScaledPods(ctx context.Context, namespace, selector, home string, apply func(name string, p *ScaledPod),
	synced func(), trouble func(error)) {
	// A LeaderWorkerSet selects the first pod of each engine. The others hold GPUs, too, and may stay for longer.
	terms := slices.DeleteFunc(strings.Split(selector, ","), func(term string) bool {
		return strings.HasPrefix(term, "leaderworkerset.sigs.k8s.io/worker-index=")
	})
	(&follower[scaledPod]{
		client: c, path: podsPath(namespace), query: url.Values{"labelSelector": {strings.Join(terms, ",")}}, known: map[string]bool{},
		change: func(name string, p *scaledPod) {
			if p == nil || p.hasEnded() {
				apply(name, nil)
				return
			}
			s := p.state(home)
			apply(name, &s)
		},
		synced: synced, trouble: trouble,
	}).run(ctx)
}
