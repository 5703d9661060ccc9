package xds

import (
	"testing"

	"github.com/stator-project/stator/internal/fleet"
)

// TestPrefillWorkersAreNoEndpoints: requests of clients reach the workers that decode alone.
func TestPrefillWorkersAreNoEndpoints(t *testing.T) {
	f := &fleet.Snapshot{Workers: []*fleet.Worker{
		{Name: "p", Model: "m", Address: "10.0.0.1:80", Role: fleet.Prefill, State: fleet.Ready},
		{Name: "d", Model: "m", Address: "10.0.0.2:80", Role: fleet.Decode, State: fleet.Ready},
	}}
	list := buildEndpoints("m", f, nil).GetEndpoints()[0].GetLbEndpoints()
	if len(list) != 1 || list[0].GetEndpoint().GetAddress().GetSocketAddress().GetAddress() != "10.0.0.2" {
		t.Errorf("endpoints %v", list)
	}
}
