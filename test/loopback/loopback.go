// Package loopback hands out TCP ports on 127.0.0.1 for servers that must be told where to
// listen before they run, and hands out none twice.
package loopback

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

// Ports come from below those that Linux and macOS give to outgoing connections and to
// servers that listen on port 0, so that neither can take one before its server starts.
const (
	first = 12_000
	ports = 20_000
)

// held keeps the UDP socket of every port handed out, for as long as the process lives. What
// we start speaks TCP, so the socket is in nobody's way but that of another test, in this
// process or beside it, that would choose the same port.
var held struct {
	sync.Mutex
	sockets []net.PacketConn
}

// Address returns an address that nobody listens on and that nobody else is given.
func Address() (string, error) {
	at := rand.IntN(ports)
	for i := range ports {
		address := net.JoinHostPort("127.0.0.1", strconv.Itoa(first+(at+i)%ports))
		if free(address) {
			return address, nil
		}
	}
	return "", errors.New("find a free port on loopback: all are taken")
}

// Port is Address for those who want its number alone.
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

// free reserves an address, if it can be had.
func free(address string) bool {
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
