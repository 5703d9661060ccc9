package local

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/plan"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

var states = map[string]fleet.State{"ready": fleet.Ready, "starting": fleet.Starting, "draining": fleet.Draining, "down": fleet.Down}

// scene is a cluster that tests describe in words.
type scene struct {
	slots   []bus.Slots
	workers map[string]worker
	memory  *memory
	now     time.Time
}

// newScene returns a cluster whose nodes have slots: "n1: a=ready b c=down; n2: d". The engines of slots without a state do not run. Slots
// and workers are those of model m, in the role aggregated, unless their names begin with p, for prefill.
func newScene(text string) *scene {
	s := &scene{workers: map[string]worker{}, memory: newMemory(), now: start}
	s.set(text)
	return s
}

// set replaces slots and workers.
func (s *scene) set(text string) {
	s.slots, s.workers = nil, map[string]worker{}
	for part := range strings.SplitSeq(text, ";") {
		node, rest, _ := strings.Cut(part, ":")
		node = strings.TrimSpace(node)
		slots := bus.Slots{Node: node}
		for word := range strings.FieldsSeq(rest) {
			name, state, runs := strings.Cut(word, "=")
			role := fleet.Aggregated
			if strings.HasPrefix(name, "p") {
				role = fleet.Prefill
			}
			if runs && state != "silent" { // an engine whose lease is not there yet
				s.workers[name] = worker{model: "m", role: role, state: states[state]}
			}
			slots.Slots = append(slots.Slots, bus.Slot{Name: name, Model: "m", Role: role, Running: runs})
		}
		if node != "other" { // workers of no slot
			s.slots = append(s.slots, slots)
		}
	}
}

// assign returns what runs, as "n1: a b; n2: d".
func (s *scene) assign(replicas int, drained ...string) string {
	pool := plan.Pool{Model: "m", Replicas: replicas}
	for _, name := range drained {
		pool.Workers = append(pool.Workers, plan.Planned{Name: name, Weight: 1, Drain: true})
	}
	s.memory.observe(s.slots, s.workers, s.now)
	run := assign(&plan.Plan{Pools: []plan.Pool{pool}}, s.slots, s.workers, s.memory, s.now)
	var parts []string
	clear(s.memory.assigned)
	for _, node := range slices.Sorted(maps.Keys(run)) {
		parts = append(parts, fmt.Sprintf("%s: %s", node, strings.Join(run[node], " ")))
		for _, name := range run[node] {
			s.memory.assigned[name] = true
		}
	}
	return strings.Join(parts, "; ")
}

// TestAssign: the slots that run are kept, the plan's drained ones end, and new ones are spread over the nodes.
func TestAssign(t *testing.T) {
	for _, c := range []struct {
		name, there string
		replicas    int
		drained     string
		want        string
	}{
		{"nothing runs", "n1: a b; n2: c d", 2, "", "n1: a; n2: c"},
		{"the node with the fewest engines", "n1: a=ready b; n2: c d", 3, "", "n1: a b; n2: c"},
		{"more than there are slots", "n1: a; n2: b", 5, "", "n1: a; n2: b"},
		{"none", "n1: a=ready; n2: b=starting", 0, "", "n1: ; n2: "},
		{"what runs is kept, although another node has none", "n1: a=ready b=ready; n2: c d", 2, "", "n1: a b; n2: "},
		{"the plan chooses who ends", "n1: a=ready b=ready; n2: c=ready", 2, "a", "n1: b; n2: c"},
		{"ready ones before starting ones", "n1: a=starting b=ready; n2: c=silent", 1, "", "n1: b; n2: "},
		{"a starting one before a free one", "n1: a b; n2: c=silent", 1, "", "n1: ; n2: c"},
		{"one that drains comes back", "n1: a=draining b; n2: c=ready", 2, "", "n1: a; n2: c"},
		{"a free one before one that the plan drains", "n1: a=ready b; n2: c=ready", 2, "a", "n1: b; n2: c"},
		{"a drained one that is needed", "n1: a=ready; n2: c=ready", 2, "a", "n1: a; n2: c"},
		{"one that is down for a moment is kept", "n1: a=down b; n2: c=ready", 2, "", "n1: a; n2: c"},
		{"ready ones before one that is down", "n1: a=down b=ready; n2: c=ready", 2, "", "n1: b; n2: c"},
		{"workers of no slot count", "n1: a b; other: w=ready x=starting", 3, "", "n1: a"},
		{"but not those that drain", "n1: a b; other: w=draining x=ready", 2, "", "n1: a"},
		{"other pools stay as they are", "n1: a p=ready q; n2: p2", 1, "", "n1: a p; n2: "},
	} {
		if got := newScene(c.there).assign(c.replicas, strings.Fields(c.drained)...); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

// TestAssignKeepsTheOldest: where the plan does not choose, those end that were ready last, because not all routers may have them.
func TestAssignKeepsTheOldest(t *testing.T) {
	s := newScene("n1: a=starting b=ready c=starting")
	s.assign(3)
	s.now = s.now.Add(time.Second)
	s.set("n1: a=ready b=ready c=ready")
	if got := s.assign(1); got != "n1: b" {
		t.Error(got)
	}
}

// TestAssignIsSteady: a role stays assigned while its engine starts, also when another node becomes emptier.
func TestAssignIsSteady(t *testing.T) {
	s := newScene("n1: a b; n2: c d=ready")
	if got := s.assign(2); got != "n1: a; n2: d" {
		t.Fatal(got)
	}
	s.set("n1: a b; n2: c d")
	if got := s.assign(2); got != "n1: a; n2: d" {
		t.Errorf("d has ended: %s", got)
	}
}

// TestAssignReplacesFailedWorkers: another slot is used for a worker that has been down for a minute, also where its engine is restarted
// meanwhile. The failed one is the last choice for some time.
func TestAssignReplacesFailedWorkers(t *testing.T) {
	s := newScene("n1: a=down; n2: b")
	if got := s.assign(1); got != "n1: a; n2: " {
		t.Fatal(got)
	}
	s.now = s.now.Add(downLong / 2)
	s.set("n1: a=starting; n2: b")
	if got := s.assign(1); got != "n1: a; n2: " {
		t.Errorf("after half a minute: %s", got)
	}
	s.now = s.now.Add(downLong / 2)
	if got := s.assign(1); got != "n1: ; n2: b" {
		t.Errorf("after a minute: %s", got)
	}

	s.set("n0: c; n1: a; n2: b=ready")
	if got := s.assign(2); got != "n0: c; n1: ; n2: b" {
		t.Errorf("with another free slot: %s", got)
	}
	s.set("n1: a; n2: b=ready")
	if got := s.assign(2); got != "n1: a; n2: b" {
		t.Errorf("without another: %s", got)
	}

	s = newScene("n1: a=down; n2: b=down")
	s.assign(2)
	s.now = s.now.Add(time.Hour)
	if got := s.assign(1); got != "n1: a; n2: " {
		t.Errorf("all have failed: %s", got)
	}
}

// TestAssignAfterANodeIsGone: the slots of other nodes are used.
func TestAssignAfterANodeIsGone(t *testing.T) {
	s := newScene("n1: a=ready; n2: b")
	s.assign(1)
	s.set("n2: b")
	if got := s.assign(1); got != "n2: b" {
		t.Error(got)
	}
}

// TestAssignWhenANodeIsBack: the workers of an agent are known before its slots. No worker of another node ends because of them.
func TestAssignWhenANodeIsBack(t *testing.T) {
	s := newScene("n2: d=ready e=ready f=ready")
	s.assign(4)
	s.set("n2: d=ready e=ready f=ready; other: a=starting b=starting")
	if got := s.assign(4); got != "n2: d e f" {
		t.Errorf("before the slots: %s", got)
	}
	s.set("n1: a=starting b=starting c; n2: d=ready e=ready f=ready")
	if got := s.assign(4); got != "n1: a; n2: d e f" {
		t.Errorf("with the slots: %s", got)
	}

	s.set("n2: d=ready e=ready f=ready; other: x=ready y=ready")
	s.assign(4)
	s.now = s.now.Add(slotsKnown)
	if got := s.assign(4); got != "n2: d e" {
		t.Errorf("workers that stay in no slot: %s", got)
	}
}

// TestBooked: workers that drain are busy or free where that is known.
func TestBooked(t *testing.T) {
	s := bus.Slots{Slots: []bus.Slot{{Name: "a"}, {Name: "b"}, {Name: "c"}, {Name: "d"}, {Name: "e"}}}
	busy, free := booked(&s, []string{"a"}, map[string]worker{"a": {booked: 3}, "b": {booked: 2}, "c": {booked: 0}, "d": {booked: -1}})
	if fmt.Sprint(busy, free) != "[b] [c]" {
		t.Error(busy, free)
	}
}
