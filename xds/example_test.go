package xds_test

import (
	"fmt"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/xds"
)

// A fleet of two workers becomes one cluster with two endpoints, beside the cluster of the router.
func ExampleBuild() {
	workers := fleet.New(fleet.Hooks{})
	for i, name := range []string{"a", "b"} {
		_, _ = workers.Put(fleet.Worker{
			Name: name, Model: "sim", Address: fmt.Sprintf("10.0.0.%d:8000", i+1), Ranks: 1, Weight: 1, State: fleet.Ready,
		})
	}

	r, err := xds.Build(xds.Settings{
		Listen: "127.0.0.1:8080", ExtProc: []string{"127.0.0.1:9002"}, Models: []string{"sim"}, SessionHeaders: []string{"x-session-id"},
	}, workers.Snapshot())
	if err != nil {
		fmt.Println(err)
		return
	}

	for _, c := range r.Clusters {
		fmt.Println("cluster", c.GetName())
	}
	for _, e := range r.Endpoints {
		for _, l := range e.GetEndpoints() {
			fmt.Println("endpoints of", e.GetClusterName(), len(l.GetLbEndpoints()))
		}
	}
	// Output:
	// cluster stator-extproc
	// cluster stator-undecided
	// cluster pool/sim
	// endpoints of pool/sim 2
}
