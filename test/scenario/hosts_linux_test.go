package scenario

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// network is several hosts that reach each other: network namespaces on one bridge. Where this machine does not
// allow namespaces they are loopback addresses, and cutting a host off stops its processes instead.
type network struct {
	t      *testing.T
	number int32
	bridge string // the namespace of the bridge; empty without namespaces
	hosts  []*host
}

// host is one machine of a network.
type host struct {
	network   *network
	name      string
	address   string
	namespace string // empty without namespaces
	commands  []*command
}

// networksOfHosts counts the networks, so that tests beside each other have their own.
var networksOfHosts atomic.Int32

// newNetwork makes a network that exists until the test ends.
func newNetwork(t *testing.T) *network {
	number := networksOfHosts.Add(1)
	n := &network{t: t, number: number, bridge: fmt.Sprintf("stator-%d-%d", os.Getpid(), number)}
	if err := n.makeBridge(); err != nil {
		t.Logf("hosts are loopback addresses, because network namespaces are not available here: %v", err)
		n.bridge = ""
	}
	return n
}

func (n *network) makeBridge() error {
	if err := ip("netns", "add", n.bridge); err != nil {
		return err
	}
	n.t.Cleanup(func() { _ = ip("netns", "del", n.bridge) })
	return ip("-n", n.bridge, "link", "add", "br0", "up", "type", "bridge")
}

// host adds a host.
func (n *network) host(name string) *host {
	n.t.Helper()
	number := len(n.hosts) + 1
	h := &host{network: n, name: name, address: fmt.Sprintf("127.%d.%d.1", 80+n.number, number)}
	n.hosts = append(n.hosts, h)
	if n.bridge == "" {
		return h
	}

	h.namespace = n.bridge + "-" + name
	h.address = fmt.Sprintf("10.77.0.%d", number)
	n.t.Cleanup(func() { _ = ip("netns", "del", h.namespace) })
	for _, args := range [][]string{
		{"netns", "add", h.namespace},
		{"-n", n.bridge, "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", h.namespace},
		{"-n", n.bridge, "link", "set", name, "master", "br0", "up"},
		{"-n", h.namespace, "addr", "add", h.address + "/24", "dev", "eth0"},
		{"-n", h.namespace, "link", "set", "eth0", "up"},
		{"-n", h.namespace, "link", "set", "lo", "up"},
	} {
		if err := ip(args...); err != nil {
			n.t.Fatal(err)
		}
	}
	return h
}

// ip runs the program of that name.
func ip(args ...string) error {
	out, err := exec.Command("ip", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

// at returns an address of the host.
func (h *host) at(port int) string { return net.JoinHostPort(h.address, fmt.Sprint(port)) }

// start runs a program on the host.
func (h *host) start(program string, args ...string) *command {
	h.network.t.Helper()
	cmd := exec.Command(program, args...)
	if h.namespace != "" {
		cmd = exec.Command("ip", append([]string{"netns", "exec", h.namespace, program}, args...)...)
	}
	c := startCommand(h.network.t, cmd)
	h.commands = append(h.commands, c)
	return c
}

// startEnvoy runs an Envoy with that bootstrap on the host.
func (h *host) startEnvoy(bootstrap []byte) {
	t := h.network.t
	t.Helper()
	path := filepath.Join(t.TempDir(), "bootstrap.json")
	if err := os.WriteFile(path, bootstrap, 0o600); err != nil {
		t.Fatal(err)
	}
	h.start(envoyPath(t), "--config-path", path, "--use-dynamic-base-id", "--concurrency", "1", "--log-level", "error")
}

// cutOff separates the host from all others until heal.
func (h *host) cutOff() {
	h.network.t.Helper()
	if h.namespace != "" {
		if err := ip("-n", h.network.bridge, "link", "set", h.name, "down"); err != nil {
			h.network.t.Fatal(err)
		}
		return
	}
	h.signal(syscall.SIGSTOP)
}

// heal ends a cutOff.
func (h *host) heal() {
	h.network.t.Helper()
	if h.namespace != "" {
		if err := ip("-n", h.network.bridge, "link", "set", h.name, "up"); err != nil {
			h.network.t.Fatal(err)
		}
		return
	}
	h.signal(syscall.SIGCONT)
}

// signal sends a signal to the host's processes and their children.
func (h *host) signal(s syscall.Signal) {
	for _, c := range h.commands {
		_ = c.cmd.Process.Signal(s)
		for pid := range children(h.network.t, c.cmd.Process.Pid) {
			_ = syscall.Kill(pid, s)
		}
	}
}

// dial connects to an address of a host, from that host.
func (n *network) dial(ctx context.Context, kind, address string) (net.Conn, error) {
	where, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	for _, h := range n.hosts {
		if h.address == where && h.namespace != "" {
			return dialIn(ctx, h.namespace, kind, address)
		}
	}
	return new(net.Dialer).DialContext(ctx, kind, address)
}

// dialIn connects from a network namespace. A socket belongs to the namespace of the thread that makes it. The thread
// returns to its own namespace and lives on: the kernel ends an Envoy when the thread ends that started it.
func dialIn(ctx context.Context, namespace, kind, address string) (net.Conn, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	own, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, err
	}
	defer func() { _ = own.Close() }()
	other, err := os.Open("/var/run/netns/" + namespace)
	if err != nil {
		return nil, err
	}
	defer func() { _ = other.Close() }()

	if err := unix.Setns(int(other.Fd()), unix.CLONE_NEWNET); err != nil {
		return nil, err
	}
	conn, err := new(net.Dialer).DialContext(ctx, kind, address)
	if back := unix.Setns(int(own.Fd()), unix.CLONE_NEWNET); back != nil {
		panic(back) // the thread would run other code in the namespace
	}
	return conn, err
}
