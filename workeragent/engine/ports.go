package engine

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"sync"
)

// DefaultPorts is the range from which engines get their ports. It lies below the ports that Linux gives
// to outgoing connections (net.ipv4.ip_local_port_range, 32768 to 60999), which come and go at any time.
const DefaultPorts = "20000-29999"

// Ports gives each engine a port, and keeps it from all other engines of the host until it is released.
//
// A reservation is a UDP socket on loopback with the engine's port number. The kernel gives each number
// to one socket, so the reservation holds between all agents of the host, also of different processes,
// and it ends with its process. Nothing is sent to the socket. A port that another program listens on is
// found by binding it, and passed over.
//
//	event                          effect
//	reserve                        the next number of the range that is neither reserved nor in use
//	reserve, every number taken    an error
//	release, or end of the agent   the number can be reserved again
//
// All methods are safe for concurrent use.
type Ports struct {
	first, count int

	mu   sync.Mutex
	next int // guarded by mu; offset of the port to try next
}

// The lowest port that needs no privileges, and the highest port.
const (
	minPort = 1024
	maxPort = 65535
)

// ParsePorts reads a range such as 20000-29999, both ends included.
func ParsePorts(text string) (*Ports, error) {
	low, high, _ := strings.Cut(text, "-")
	first, lowErr := strconv.Atoi(low)
	last, highErr := strconv.Atoi(high)
	if lowErr != nil || highErr != nil || first < minPort || last > maxPort || first > last {
		return nil, fmt.Errorf("port range %q: use two ports from %d to %d, such as %s", text, minPort, maxPort, DefaultPorts)
	}

	// Agents begin at different ports, so that they seldom try the same one.
	count := last - first + 1
	return &Ports{first: first, count: count, next: rand.IntN(count)}, nil
}

// reservation is a port that no other engine of the host gets.
type reservation struct {
	port int
	held net.PacketConn // nil if the port could not be reserved
}

// release gives the port back.
func (r *reservation) release() {
	if r.held != nil {
		_ = r.held.Close()
	}
}

// reserve returns a port that is free on the host, an IP. A port that was given back is tried last.
func (p *Ports) reserve(host string) (*reservation, error) {
	var last error
	for range p.count {
		r, err := take(host, p.following())
		if err == nil {
			return r, nil
		}
		last = err
	}
	return nil, fmt.Errorf("no port from %d to %d is free on %s: %w", p.first, p.first+p.count-1, host, last)
}

// reserveRun returns n ports, one after the other, that are free on the host.
func (p *Ports) reserveRun(host string, n int) ([]*reservation, error) {
	last := fmt.Errorf("the range has %d ports, and the engine needs %d one after the other", p.count, n)
	for range p.count {
		first := p.following()
		if first+n > p.first+p.count {
			continue
		}
		run, err := takeRun(host, first, n)
		if err == nil {
			p.skip(n - 1)
			return run, nil
		}
		last = err
	}
	return nil, fmt.Errorf("no %d ports one after the other from %d to %d are free on %s: %w", n, p.first, p.first+p.count-1, host, last)
}

// takeRun reserves n ports from first on, or none.
func takeRun(host string, first, n int) (run []*reservation, err error) {
	for port := first; port < first+n; port++ {
		r, err := take(host, port)
		if err != nil {
			for _, r := range run {
				r.release()
			}
			return nil, err
		}
		run = append(run, r)
	}
	return run, nil
}

// skip passes over ports that were just reserved.
func (p *Ports) skip(n int) {
	for range n {
		p.following()
	}
}

// following returns the next port to try.
func (p *Ports) following() int {
	p.mu.Lock()
	defer p.mu.Unlock()

	port := p.first + p.next
	p.next = (p.next + 1) % p.count
	return port
}

// errReserved means that another engine of the host has the port.
var errReserved = errors.New("another engine has reserved it")

// hold reserves one port, whether or not a program listens on it.
func hold(port int) (*reservation, error) {
	held, err := net.ListenPacket("udp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return nil, fmt.Errorf("port %d: %w (%w)", port, errReserved, err)
	}
	return &reservation{port: port, held: held}, nil
}

// holdUsed reserves a port on which an engine listens. The port is safe from others even if it cannot be reserved just now.
func holdUsed(port int) *reservation {
	r, err := hold(port)
	if err != nil {
		return &reservation{port: port}
	}
	return r
}

// take reserves a port that no program listens on.
func take(host string, port int) (*reservation, error) {
	r, err := hold(port)
	if err != nil {
		return nil, err
	}

	l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		r.release()
		return nil, err
	}
	_ = l.Close()
	return r, nil
}
