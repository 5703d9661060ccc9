package plan_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/plan"
	"github.com/stator-project/stator/test/plantest"
)

// newWorld returns a world whose engines have the committed profile, a Llama-3.1-8B in FP8 on an H200.
func newWorld(t testing.TB) *plantest.World {
	t.Helper()
	return plantest.New(t, os.DirFS("../../test/lab/profile"), nil)
}

// TestNext runs testdata/*.txt.
func TestNext(t *testing.T) { plantest.Run(t, "testdata", newWorld) }

// The plan does not depend on the order in which pools are named, and naming them is not changing them.
func TestNextIsInOrder(t *testing.T) {
	models := []plan.Model{
		{Name: "b", Pools: []plan.Configured{{Replicas: 1}}},
		{Name: "a", Pools: []plan.Configured{{Role: fleet.Decode, Replicas: 2}, {Replicas: 3}}},
	}
	before := fmt.Sprint(models)
	o := plan.Observation{Settings: &plan.Settings{Models: models}}
	first, _ := plan.Next(plan.State{}, o)
	if fmt.Sprint(models) != before {
		t.Error("the observation was changed")
	}
	models[0], models[1] = models[1], models[0]
	if again, _ := plan.Next(plan.State{}, o); again.String() != first.String() {
		t.Errorf("in another order\n%sinstead of\n%s", again, first)
	}
}
