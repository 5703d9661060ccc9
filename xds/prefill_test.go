package xds

import (
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/stator-project/stator/internal/fleet"
)

// TestPrefillWorkersAreNoEndpoints: requests of clients reach the workers that decode alone.
func TestPrefillWorkersAreNoEndpoints(t *testing.T) {
	f := &fleet.Snapshot{Workers: []*fleet.Worker{
		{Name: "p", Model: "m", Address: "10.0.0.1:80", Role: fleet.Prefill, State: fleet.Ready},
		{Name: "d", Model: "m", Address: "10.0.0.2:80", Role: fleet.Decode, State: fleet.Ready},
	}}
	list := buildEndpoints("m", f.Workers, []string{"10.0.0.9:9004"}, nil).GetEndpoints()[0].GetLbEndpoints()
	if len(list) != 2 || list[0].GetEndpoint().GetAddress().GetSocketAddress().GetAddress() != "10.0.0.2" {
		t.Fatalf("endpoints %v", list)
	}
	// The relay gets no request that does not name it.
	relay := list[1]
	if relay.GetEndpoint().GetAddress().GetSocketAddress().GetAddress() != "10.0.0.9" || relay.GetHealthStatus() != corev3.HealthStatus_UNHEALTHY {
		t.Errorf("the relay's endpoint is %v", relay)
	}
	f.Workers = f.Workers[1:]
	if list := buildEndpoints("m", f.Workers, []string{"10.0.0.9:9004"}, nil).GetEndpoints()[0].GetLbEndpoints(); len(list) != 1 {
		t.Errorf("endpoints %v of a model without prefill workers", list)
	}
}
