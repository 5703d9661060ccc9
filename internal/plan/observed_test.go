package plan

import (
	"testing"

	"github.com/stator-project/stator/internal/fleet"
)

// TestObservationsLeaveOutThePlan: a planner in the process of a control plane observes what one of its own observes.
func TestObservationsLeaveOutThePlan(t *testing.T) {
	f := fleet.New(fleet.Hooks{})
	w := fleet.Worker{Name: "a", Model: "m", Address: "10.0.0.1:80", Ranks: 1, Weight: 3, State: fleet.Ready}
	if _, err := f.Put(w); err != nil {
		t.Fatal(err)
	}
	before := WorkersOf(f.Snapshot())[0]
	if _, err := f.SetPlanned([]fleet.Planned{{Name: "a", Weight: 500, Drain: true}}); err != nil {
		t.Fatal(err)
	}
	if after := WorkersOf(f.Snapshot())[0]; after != before {
		t.Errorf("%+v, want %+v", after, before)
	}
}
