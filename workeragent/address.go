package workeragent

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strings"
)

// busPort is the port of a NATS server whose URL has none.
const busPort = "4222"

// RouteAddress returns the IP of this host from which it reaches the bus: the address at which the other
// parts of a cluster most likely reach this host. busURL has one or more URLs, which commas separate. If
// the bus is on loopback, so is the result. It sends nothing.
func RouteAddress(busURL string) (string, error) {
	first, _, _ := strings.Cut(busURL, ",")
	server, err := url.Parse(strings.TrimSpace(first))
	if err != nil || server.Hostname() == "" {
		return "", fmt.Errorf("find the address of this host: the bus has no host in its URL: use --advertise-address")
	}

	// A UDP socket that is connected has the local address of its route. No packet is sent for that.
	conn, err := net.Dial("udp", net.JoinHostPort(server.Hostname(), cmp.Or(server.Port(), busPort)))
	if err != nil {
		return "", fmt.Errorf("find the address of this host: %w: use --advertise-address", err)
	}
	defer func() { _ = conn.Close() }()

	local, err := netip.ParseAddrPort(conn.LocalAddr().String())
	if err != nil {
		return "", fmt.Errorf("find the address of this host: %w", err)
	}
	return local.Addr().Unmap().WithZone("").String(), nil
}
