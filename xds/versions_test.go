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
		warn  bool
	}{{36, true}, {37, true}, {38, false}, {40, false}} {
		var log testkit.Log
		s := NewServer(Settings{}, fleet.New(fleet.Hooks{}), log.Logger(), prometheus.NewRegistry())
		err := s.joined(1, &corev3.Node{Id: "edge", UserAgentVersionType: &corev3.Node_UserAgentBuildVersion{
			UserAgentBuildVersion: &corev3.BuildVersion{Version: &typev3.SemanticVersion{MajorNumber: 1, MinorNumber: tt.minor}},
		}})
		if err != nil || log.Contains("use Envoy 1.38 or later") != tt.warn {
			t.Errorf("1.%d: %v, it logs %q", tt.minor, err, log.String())
		}
	}
}
