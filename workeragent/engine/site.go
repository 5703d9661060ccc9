package engine

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
)

// Site has the IP, the ports and the socket folder for the engines of one agent. The engines share it, and it is not changed
// while they run.
type Site struct {
	// Host is the IP at which engines listen, and at which routers and Envoy reach them.
	Host string
	// Ports are the ports of their HTTP servers.
	Ports *Ports
	// Sockets is the folder of the Unix sockets on which engines publish KV events. Events contain the
	// token ids of all prompts, so the folder must be private to the user.
	Sockets string
	// inPod means that the engine has an IP of its own: it publishes its events on podEvents and podReplay, and routers read them.
	inPod bool
}

// NewSite returns a site at an IP, with ports from a range such as [DefaultPorts], and with a private folder.
func NewSite(host, ports, sockets string) (Site, error) {
	p, err := ParsePorts(ports)
	if err != nil {
		return Site{}, err
	}
	s := Site{Host: host, Ports: p, Sockets: sockets}
	return s, s.Validate()
}

// maxSocketPath bounds the path of a Unix socket: the kernel's 108 bytes, less the 0 at the end.
const maxSocketPath = 107

// Validate returns an error for a site that is not valid.
func (s *Site) Validate() error {
	if ip, err := netip.ParseAddr(s.Host); err != nil || ip.IsUnspecified() || ip.Zone() != "" {
		return fmt.Errorf("advertised address %q must be an IP of this host, such as 10.0.0.1", s.Host)
	}
	if longest := s.socket(maxPort, "inproc-events_dp1023"); len(longest) > maxSocketPath {
		return fmt.Errorf("folder %s: its name has %d bytes too many for Unix sockets in it", s.Sockets, len(longest)-maxSocketPath)
	}
	return nil
}

// socket returns the path of a Unix socket of the engine that has the port. The port makes it unique.
func (s *Site) socket(port int, name string) string {
	return filepath.Join(s.Sockets, strconv.Itoa(port)+"-"+name)
}

// KVStore returns the path of the Unix socket of a model's store of KV blocks. Its name is short, whatever the model's is.
func (s *Site) KVStore(model string) string {
	sum := sha256.Sum256([]byte(model))
	return filepath.Join(s.Sockets, "kv-"+hex.EncodeToString(sum[:8])+".sock")
}

// address returns the host and port of an engine's HTTP server.
func (s *Site) address(port int) string { return net.JoinHostPort(s.Host, strconv.Itoa(port)) }

// endpoints returns the ZMQ endpoints of KV events and of their replay. vLLM derives the endpoint of a
// data-parallel rank from the endpoint of rank 0. For a Unix socket it does so only if the name
// contains "inproc": it then appends _dp and the rank.
func (s *Site) endpoints(port int) (events, replay string) {
	if s.inPod {
		return fmt.Sprintf("tcp://*:%d", podEvents), fmt.Sprintf("tcp://*:%d", podReplay)
	}
	return "ipc://" + s.socket(port, "inproc-events"), "ipc://" + s.socket(port, "inproc-replay")
}

// removeSockets removes the sockets of an engine that has ended.
func (s *Site) removeSockets(port int) {
	found, err := filepath.Glob(s.socket(port, "*"))
	if err != nil {
		return // a folder whose name is a broken pattern keeps its sockets, which the next engine replaces
	}
	for _, path := range found {
		_ = os.Remove(path) // it may be gone already
	}
}
