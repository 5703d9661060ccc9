package xds

import (
	"maps"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"

	"github.com/stator-project/stator/internal/fleet"
)

// TestPrefillWorkersAreNoEndpoints: requests of clients reach the workers that decode alone.
func TestPrefillWorkersAreNoEndpoints(t *testing.T) {
	f := &fleet.Snapshot{Workers: []*fleet.Worker{
		{Name: "p", Model: "m", Address: "10.0.0.1:80", Role: fleet.Prefill, State: fleet.Ready},
		{Name: "d", Model: "m", Address: "10.0.0.2:80", Role: fleet.Decode, State: fleet.Ready},
	}}
	list := buildEndpoints("m", f.Workers, &Settings{Relays: []string{"10.0.0.9:9004"}}, nil).GetEndpoints()[0].GetLbEndpoints()
	if len(list) != 2 || list[0].GetEndpoint().GetAddress().GetSocketAddress().GetAddress() != "10.0.0.2" {
		t.Fatalf("endpoints %v", list)
	}
	// The relay gets no request that does not name it.
	relay := list[1]
	if relay.GetEndpoint().GetAddress().GetSocketAddress().GetAddress() != "10.0.0.9" || relay.GetHealthStatus() != corev3.HealthStatus_UNHEALTHY {
		t.Errorf("the relay's endpoint is %v", relay)
	}
	// Envoy reaches relays without TLS, and engines that are an exception, also those that have just left.
	inClear, err := fleet.ParseAddresses([]string{"10.0.0.2", ":81"})
	if err != nil {
		t.Fatal(err)
	}
	f.Workers = append(f.Workers, &fleet.Worker{Name: "e", Model: "m", Address: "10.0.0.3:80"})
	s := Settings{Relays: []string{"10.0.0.9:9004"}, EnginesInClear: inClear}
	plain := map[string]bool{}
	for _, e := range buildEndpoints("m", f.Workers, &s, []Leaving{{"m", "10.0.0.4:81"}, {"m", "10.0.0.5:80"}}).GetEndpoints()[0].GetLbEndpoints() {
		mark := e.GetMetadata().GetFilterMetadata()["envoy.transport_socket_match"]
		plain[e.GetEndpoint().GetAddress().GetSocketAddress().GetAddress()] = proto.Equal(mark, plainMark())
	}
	if want := map[string]bool{"10.0.0.2": true, "10.0.0.3": false, "10.0.0.9": true, "10.0.0.4": true, "10.0.0.5": false}; !maps.Equal(plain, want) {
		t.Errorf("endpoints without TLS: %v", plain)
	}

	f.Workers = f.Workers[1:2]
	if list := buildEndpoints("m", f.Workers, &Settings{Relays: []string{"10.0.0.9:9004"}}, nil).GetEndpoints()[0].GetLbEndpoints(); len(list) != 2 {
		t.Errorf("endpoints %v of a model whose streams may go to the relay", list)
	}
}
