// Package loopback reserves TCP ports on 127.0.0.1 for servers that get their address before they start.
// It reserves no port twice.
package loopback

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

// The range lies below the ports that Linux and macOS give to outgoing connections and to servers on
// port 0, so that neither can take a port between its reservation and the start of its server.
const (
	first = 12_000
	ports = 20_000
)

// held keeps the UDP socket of every reserved port open until the process ends. Servers of tests use TCP,
// so the socket disturbs none of them; it keeps this and other test processes from reserving the port.
var held struct {
	sync.Mutex
	sockets []net.PacketConn
}

// Address reserves an address that no server uses, and returns it.
func Address() (string, error) {
	at := rand.IntN(ports)
	for i := range ports {
		address := net.JoinHostPort("127.0.0.1", strconv.Itoa(first+(at+i)%ports))
		if reserve(address) {
			return address, nil
		}
	}
	return "", errors.New("find a free port on loopback: all are taken")
}

// Port reserves an address and returns its port.
func Port() (int, error) {
	address, err := Address()
	if err != nil {
		return 0, err
	}

	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(port)
}

// reserve reserves an address, and reports whether it was free.
func reserve(address string) bool {
	reserved, err := net.ListenPacket("udp", address)
	if err != nil {
		return false
	}

	server, err := net.Listen("tcp", address)
	if err != nil {
		_ = reserved.Close()
		return false
	}

	_ = server.Close()
	held.Lock()
	defer held.Unlock()
	held.sockets = append(held.sockets, reserved)
	return true
}
