package bus_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/test/testkit"
)

// seenSlots collects the slots that a watch receives.
type seenSlots struct {
	mu    sync.Mutex
	nodes map[string]bus.Slots
}

func (s *seenSlots) apply(x bus.Slots) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(x.Slots) == 0 {
		delete(s.nodes, x.Node)
		return
	}
	s.nodes[x.Node] = x
}

func (s *seenSlots) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return fmt.Sprint(s.nodes)
}

// TestSlots: a watch receives the slots of nodes and their changes. If an agent stops, its slots are removed. If it does not
// write any more, they expire.
func TestSlots(t *testing.T) {
	server := testkit.Server(t)
	b := testkit.JoinBus(t, bus.Config{Embedded: server})
	seen := &seenSlots{nodes: map[string]bus.Slots{}}
	synced := make(chan struct{}, 9)
	running(t, func(ctx context.Context) error {
		return b.WatchSlots(ctx, seen.apply, func() { synced <- struct{}{} })
	})
	<-synced

	var mu sync.Mutex
	mine := bus.Slots{Slots: []bus.Slot{{Name: "a", Model: "m", Role: fleet.Decode}}}
	changed := make(chan struct{}, 1)
	ctx, stop := context.WithCancel(t.Context())
	held := make(chan error, 1)
	go func() {
		held <- b.HoldSlots(ctx, func() bus.Slots { mu.Lock(); defer mu.Unlock(); return mine }, changed)
	}()
	testkit.Eventually(t, "the slots are there", func() bool { return seen.String() == "map[:{ [{a m decode false}]}]" })
	mu.Lock()
	mine = bus.Slots{Slots: []bus.Slot{{Name: "a", Model: "m", Role: fleet.Decode, Running: true}}}
	mu.Unlock()
	changed <- struct{}{}
	testkit.Eventually(t, "the change is there", func() bool { return seen.String() == "map[:{ [{a m decode true}]}]" })

	// The other agent's connection ends, so it can remove nothing.
	other := testkit.JoinBus(t, bus.Config{Embedded: server})
	dying, die := context.WithCancel(t.Context())
	dead := make(chan struct{})
	go func() {
		defer close(dead)
		_ = other.HoldSlots(dying, func() bus.Slots { return bus.Slots{Node: "n", Slots: []bus.Slot{{Name: "n.b"}}} }, nil)
	}()
	testkit.Eventually(t, "both nodes are there", func() bool {
		return seen.String() == "map[:{ [{a m decode true}]} n:{n [{n.b  aggregated false}]}]"
	})
	other.Close()
	die()
	<-dead
	testkit.Eventually(t, "those of the other agent have expired", func() bool { return seen.String() == "map[:{ [{a m decode true}]}]" })

	stop()
	if err := <-held; err != nil {
		t.Error(err)
	}
	testkit.Eventually(t, "none is left", func() bool { return seen.String() == "map[]" })
}

// TestAssignments: an agent receives the assignments of its node, and a planner of an earlier term is refused.
func TestAssignments(t *testing.T) {
	b := testkit.Bus(t)
	put := func(a bus.Assignment) {
		t.Helper()
		if err := b.PutAssignment(t.Context(), a); err != nil {
			t.Fatal(err)
		}
	}
	first := bus.Assignment{Term: 5, Node: "n", Run: []string{"n.a"}, Busy: []string{"n.b"}, Free: []string{"n.c"}, Drain: time.Minute}
	put(first)

	got, synced := make(chan bus.Assignment, 9), make(chan struct{}, 9)
	running(t, func(ctx context.Context) error {
		return b.WatchAssignment(ctx, "n", func(a bus.Assignment) { got <- a }, func() { synced <- struct{}{} })
	})
	<-synced
	if a := <-got; !reflect.DeepEqual(a, first) {
		t.Errorf("%+v, want %+v", a, first)
	}
	put(bus.Assignment{Term: 5, Node: "other"})
	put(bus.Assignment{Term: 6, Node: "n"})
	if err := b.PutAssignment(t.Context(), first); !errors.Is(err, bus.ErrEarlierTerm) {
		t.Errorf("an assignment of an earlier term: %v", err)
	}
	if a := <-got; a.Term != 6 || len(a.Run) > 0 {
		t.Errorf("%+v", a)
	}
}
