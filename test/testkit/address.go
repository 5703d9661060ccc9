package testkit

import (
	"testing"

	"github.com/stator-project/stator/test/loopback"
)

// Address reserves an address on loopback that no server uses. It is for servers that get their address before they start, and so
// cannot have one of port 0. No test gets it again.
func Address(t testing.TB) string {
	t.Helper()
	address, err := loopback.Address()
	if err != nil {
		t.Fatal(err)
	}
	return address
}

// Port reserves an address as [Address] does, and returns its port. It is for flags and variables that take the port alone.
func Port(t testing.TB) int {
	t.Helper()
	port, err := loopback.Port()
	if err != nil {
		t.Fatal(err)
	}
	return port
}
