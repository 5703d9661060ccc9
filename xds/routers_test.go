package xds

import (
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
)

// Routers are addresses, names or sockets. What Envoy cannot use is refused before anything starts.
func TestRouterAddresses(t *testing.T) {
	for addresses, want := range map[string]string{
		"10.0.0.1:9002 10.0.0.2:9002":            "",
		"[::1]:9002":                             "",
		"routers.default.svc.cluster.local:9002": "",
		"router-0:9002 10.0.0.2:9002":            "",
		"unix:///run/a.sock unix:///run/b.sock":  "",
		"unix:///run/a.sock router-0:9002":       "cannot be used together",
		"10.0.0.1":                               "use ip:port, name:port",
		"10.0.0:9002":                            "use ip:port, name:port",
		"router:http":                            "use ip:port, name:port",
		"router:0":                               "use ip:port, name:port",
		"http://router:9002":                     "use ip:port, name:port",
		"-router:9002":                           "use ip:port, name:port",
		"":                                       "use ip:port, name:port",
	} {
		err := CheckServers(strings.Split(addresses, " "), false)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, want %q", addresses, err, want)
		}
	}
	if err := CheckServers([]string{"router-0:9002", "10.0.0.2:9002"}, true); err != nil {
		t.Error(err)
	}
	if err := CheckServers([]string{"unix:///run/a.sock"}, true); err == nil || !strings.Contains(err.Error(), "a Unix socket has no TLS") {
		t.Errorf("a socket with TLS: %v", err)
	}
	c, err := buildExtProcCluster(Settings{ExtProc: []string{"router-0:9002", "10.0.0.2:9002"}})
	if err != nil || c.GetType() != clusterv3.Cluster_STRICT_DNS || c.ValidateAll() != nil {
		t.Errorf("a name: %v, %v", c.GetType(), err)
	}
}

// The node id of an Envoy is in the metadata of its streams, and Envoy replaces nothing in it.
func TestNodeIDIsInMetadata(t *testing.T) {
	for _, trusted := range []bool{false, true} {
		g := decisionService(audience{node: "edge-50%", trusted: trusted})
		if n := len(g.InitialMetadata); n != 1 && !trusted || n != 2 && trusted || g.InitialMetadata[0].Value != "edge-50%%" {
			t.Errorf("trusted %v: %v", trusted, g.InitialMetadata)
		}
	}
	if g := extProcService(audience{}); g.InitialMetadata != nil {
		t.Errorf("an Envoy without a node id: %v", g.InitialMetadata)
	}
}
