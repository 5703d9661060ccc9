package plan_test

import (
	"fmt"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/plan"
)

// The configuration names two workers, and one of them is ready.
func ExampleNext() {
	settings := &plan.Settings{Models: []plan.Model{{Name: "m", Pools: []plan.Configured{{Replicas: 2}}}}}
	workers := []plan.Worker{{Name: "a", Model: "m", State: fleet.Ready}}

	p, _ := plan.Next(plan.State{}, plan.Observation{Settings: settings, Workers: workers})

	fmt.Println(p.Pools[0].Replicas, "wanted,", p.Pools[0].Ready, "ready")
	// Output:
	// 2 wanted, 1 ready
}
