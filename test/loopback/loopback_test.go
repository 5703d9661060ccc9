package loopback

import (
	"net"
	"sync"
	"testing"
)

// TestAddressIsGivenOnce asks from many goroutines at once: all answers differ, and a server
// can listen on each.
func TestAddressIsGivenOnce(t *testing.T) {
	given := make([]string, 400)
	var all sync.WaitGroup
	for i := range given {
		all.Go(func() {
			address, err := Address()
			if err != nil {
				t.Error(err)
			}
			given[i] = address
		})
	}
	all.Wait()
	seen := map[string]bool{}
	for _, address := range given {
		if seen[address] {
			t.Fatalf("%s was given twice", address)
		}
		seen[address] = true
		server, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatalf("nobody was to listen on it: %v", err)
		}
		_ = server.Close()
	}
}
