package xds

import (
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/testkit"
)

// TestOldEnvoysAreNamed: an Envoy before 1.38 obeys picks and does not report who served a request. The control plane
// logs that when such an Envoy connects.
func TestOldEnvoysAreNamed(t *testing.T) {
	for _, tt := range []struct {
		minor uint32
		lines int
	}{{36, 1}, {37, 1}, {38, 0}, {40, 0}} {
		var log testkit.Log
		s := NewServer(Settings{}, fleet.New(fleet.Hooks{}), log.Logger(), prometheus.NewRegistry())
		envoy := &corev3.Node{Id: "edge", UserAgentVersionType: &corev3.Node_UserAgentBuildVersion{
			UserAgentBuildVersion: &corev3.BuildVersion{Version: &typev3.SemanticVersion{MajorNumber: 1, MinorNumber: tt.minor}},
		}}
		for range 3 { // of one stream
			if err := s.joined(1, envoy); err != nil {
				t.Fatal(err)
			}
		}
		if n := log.Count("use Envoy 1.38 or later"); n != tt.lines {
			t.Errorf("1.%d: %d lines: %s", tt.minor, n, &log)
		}
	}
}
