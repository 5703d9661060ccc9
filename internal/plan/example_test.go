package plan_test

import (
	"fmt"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/plan"
)

// The configuration names two workers, and one of them is ready.
func ExampleNext() {
	workers := fleet.New(fleet.Hooks{})
	_, _ = workers.Put(fleet.Worker{Name: "a", Model: "m", Address: "10.0.0.1:8000", Ranks: 1, State: fleet.Ready})

	p := plan.Next(plan.Observation{Pools: []plan.Configured{{Model: "m", Replicas: 2}}, Fleet: workers.Snapshot()})

	fmt.Println(p.Pools[0].Replicas, "wanted,", p.Pools[0].Ready, "ready")
	// Output:
	// 2 wanted, 1 ready
}
