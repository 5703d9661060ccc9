package fleet_test

import (
	"testing"
	"time"

	"github.com/stator-project/stator/internal/fleet"
)

func TestPlansAreBounded(t *testing.T) {
	f := fleet.New(fleet.Hooks{})
	plan := make([]fleet.Planned, fleet.MaxPlanned+1)
	for i := range plan {
		plan[i] = fleet.Planned{Name: "w", Weight: 1}
	}
	if _, err := f.SetPlanned(plan); err == nil {
		t.Error("a plan with too many workers was accepted")
	}
	if _, err := f.SetPlanned(plan[1:]); err != nil {
		t.Error(err)
	}
}

// TestSnapshotsDoNotLeakThePlan: a worker of a snapshot that is put back keeps the weight of its source.
func TestSnapshotsDoNotLeakThePlan(t *testing.T) {
	f := fleet.New(fleet.Hooks{})
	put := func(w fleet.Worker) {
		t.Helper()
		if _, err := f.Put(w); err != nil {
			t.Fatal(err)
		}
	}
	put(fleet.Worker{Name: "a", Model: "m", Address: "10.0.0.1:80", Ranks: 1, Weight: 3, State: fleet.Ready})
	if _, err := f.SetPlanned([]fleet.Planned{{Name: "a", Weight: 500, Drain: true}}); err != nil {
		t.Fatal(err)
	}

	kept := *f.Snapshot().Worker("a")
	kept.Unleased = time.Unix(1, 0)
	put(kept)
	if w := f.Snapshot().Worker("a"); w.Weight != 500 || w.ConfiguredWeight() != 3 || w.StateWithoutPlan() != fleet.Ready {
		t.Errorf("weight %d of %d, %s", w.Weight, w.ConfiguredWeight(), w.StateWithoutPlan())
	}
	if _, err := f.SetPlanned(nil); err != nil {
		t.Fatal(err)
	}
	if w := f.Snapshot().Worker("a"); w.Weight != 3 || w.State != fleet.Ready {
		t.Errorf("weight %d and %s without a plan", w.Weight, w.State)
	}
}

// TestUnreadyNamesThePlan: a worker that only the plan drains has that as the reason.
func TestUnreadyNamesThePlan(t *testing.T) {
	f := fleet.New(fleet.Hooks{})
	if _, err := f.Put(fleet.Worker{Name: "a", Model: "m", Address: "10.0.0.1:80", Ranks: 1, State: fleet.Ready}); err != nil {
		t.Fatal(err)
	}
	if _, err := f.SetPlanned([]fleet.Planned{{Name: "a", Weight: 1, Drain: true}}); err != nil {
		t.Fatal(err)
	}
	if got := f.Snapshot().Unready("m"); got != "a is draining (the plan drains it)" {
		t.Error(got)
	}
	f.SetState("a", fleet.Draining)
	if got := f.Snapshot().Unready("m"); got != "a is draining" {
		t.Error(got)
	}
}

// TestUnchangedWorkersKeepTheirPointers: readers find the workers that changed by comparing pointers.
func TestUnchangedWorkersKeepTheirPointers(t *testing.T) {
	f := fleet.New(fleet.Hooks{})
	for _, name := range []string{"a", "b"} {
		if _, err := f.Put(fleet.Worker{Name: name, Model: "m", Address: "10.0.0.1:80", Ranks: 1, State: fleet.Ready}); err != nil {
			t.Fatal(err)
		}
	}
	before := f.Snapshot()
	if _, err := f.SetPlanned([]fleet.Planned{{Name: "b", Weight: 2}}); err != nil {
		t.Fatal(err)
	}
	after := f.Snapshot()
	if before.Worker("a") != after.Worker("a") || before.Worker("b") == after.Worker("b") || before.Worker("b").Weight != 1 {
		t.Error("the wrong worker was replaced")
	}
}
