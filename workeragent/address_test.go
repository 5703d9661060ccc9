package workeragent

import (
	"net/netip"
	"strings"
	"testing"
)

// TestRouteAddress: an agent advertises the address from which it reaches the bus.
func TestRouteAddress(t *testing.T) {
	for url, want := range map[string]string{
		"nats://127.0.0.1:4222":                       "127.0.0.1",
		"nats://localhost":                            "127.0.0.1",
		"tls://127.0.0.9:4222, nats://192.0.2.1:4222": "127.0.0.1",
	} {
		got, err := RouteAddress(url)
		if err != nil || got != want {
			t.Errorf("%s: %s, %v; want %s", url, got, err, want)
		}
	}

	// If IPv6 is on, loopback is a route like any other.
	if got, err := RouteAddress("nats://[::1]:4222"); err == nil && got != netip.IPv6Loopback().String() {
		t.Errorf("a bus on ::1: %s", got)
	}
	for _, url := range []string{"", "nats://", "nats://host.invalid:4222"} {
		if got, err := RouteAddress(url); err == nil || !strings.Contains(err.Error(), "use --advertise-address") {
			t.Errorf("%q: %s, %v", url, got, err)
		}
	}
}
