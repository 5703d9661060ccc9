package xds_test

import (
	"testing"
	"time"

	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/xds"
)

// TestListenersWaitForRoutes: an Envoy that starts opens no listener before it has the routes, because it would answer 404.
func TestListenersWaitForRoutes(t *testing.T) {
	s := xds.Settings{
		Listen: "127.0.0.1:8080", ExtProc: []string{"unix:///run/extproc.sock"}, Models: []string{"sim"}, MaxBodyBytes: 1 << 20,
		DecisionTimeout: 5 * time.Second, IdleTimeout: 10 * time.Minute,
	}
	r, err := xds.Build(s, &fleet.Snapshot{})
	if err != nil {
		t.Fatal(err)
	}
	var manager hcmv3.HttpConnectionManager
	if err := r.Listeners[0].FilterChains[0].Filters[0].GetTypedConfig().UnmarshalTo(&manager); err != nil {
		t.Fatal(err)
	}
	if d := manager.GetRds().ConfigSource.InitialFetchTimeout; d == nil || d.AsDuration() != 0 {
		t.Errorf("the listener opens without routes after %v: want 0, which means no limit", d)
	}
}
