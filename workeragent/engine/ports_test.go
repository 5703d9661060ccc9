package engine

import (
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// TestPortsAreNeverGivenTwice builds eight engines at once, 500 times, by two agents of one host. No two of the
// engines that run at the same time have the same port.
func TestPortsAreNeverGivenTwice(t *testing.T) {
	first, second := testSite(t), testSite(t)
	for round := range 500 {
		var all sync.WaitGroup
		built := make([]*Command, 8)
		for i := range built {
			at := []*Site{first, second}[i%2]
			all.Go(func() {
				c, err := Launch{Kind: "sim", Name: "a", Model: "m", Self: "/bin/stator", BlockSize: 16}.Build(at)
				if err != nil {
					t.Error(err)
				}
				built[i] = c
			})
		}
		all.Wait()

		taken := map[string]bool{}
		for _, c := range built {
			if c == nil {
				t.FailNow()
			}
			if taken[c.Worker.Address] {
				t.Fatalf("round %d: %s was given twice", round, c.Worker.Address)
			}
			taken[c.Worker.Address] = true
			c.Release()
		}
	}
}

// TestPortsInUseArePassedOver: a port on which another program listens is not given to an engine, and neither is
// one that is reserved. When none is left, the error names the reason.
func TestPortsInUseArePassedOver(t *testing.T) {
	ports := freeRange(t, 3)
	busy, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", ports.first+1))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = busy.Close() }()

	given := map[int]*reservation{}
	for range 2 {
		r, err := ports.reserve("127.0.0.1")
		if err != nil {
			t.Fatal(err)
		}
		given[r.port] = r
	}
	if len(given) != 2 || given[ports.first+1] != nil {
		t.Fatalf("given %v, while %d is in use", given, ports.first+1)
	}
	if _, err := ports.reserve("127.0.0.1"); err == nil || !strings.Contains(err.Error(), "is free on 127.0.0.1") {
		t.Errorf("a fourth port: %v", err)
	}

	given[ports.first].release()
	r, err := ports.reserve("127.0.0.1")
	if err != nil || r.port != ports.first {
		t.Fatalf("a port that was given back: %+v, %v", r, err)
	}
	r.release()
	given[ports.first+2].release()
}

// freeRange returns a range of n ports that are free now.
func freeRange(t *testing.T, n int) *Ports {
	t.Helper()
	for first := 30000; first < 32000; first += n {
		ports, err := ParsePorts(fmt.Sprintf("%d-%d", first, first+n-1))
		if err != nil {
			t.Fatal(err)
		}
		free := 0
		for port := first; port < first+n; port++ {
			if r, err := take("127.0.0.1", port); err == nil {
				r.release()
				free++
			}
		}
		if free == n {
			return ports
		}
	}
	t.Fatal("no free ports")
	return nil
}

// TestParsePorts: a range has two ends, in order, that an unprivileged program may use.
func TestParsePorts(t *testing.T) {
	for text, ok := range map[string]bool{
		"20000-29999": true, "1024-65535": true, "7000-7000": true,
		"": false, "7000": false, "80-90": false, "9000-8000": false, "60000-70000": false, "a-b": false, "1024-2048-4096": false,
	} {
		if _, err := ParsePorts(text); (err == nil) != ok {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestBuildWithoutPorts: when the process can open no more sockets, the error names the engine.
func TestBuildWithoutPorts(t *testing.T) {
	at := testSite(t)
	at.Ports.count = 10

	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	none := limit
	none.Cur = 0
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}
	_, err := Launch{Kind: "sim", Name: "a"}.Build(at)
	if restored := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); restored != nil {
		t.Fatal(restored)
	}

	if err == nil || !strings.HasPrefix(err.Error(), "reserve a port for a: ") {
		t.Errorf("error %v", err)
	}
}

// TestReleaseRemovesSockets: the sockets of an engine that was killed are removed, and the sockets of others stay.
func TestReleaseRemovesSockets(t *testing.T) {
	at := testSite(t)
	c, err := Launch{Kind: "sim", Name: "a", Model: "m"}.Build(at)
	if err != nil {
		t.Fatal(err)
	}
	own := strings.TrimPrefix(c.Worker.KVEvents, "ipc://")
	other := at.socket(1, "inproc-events")
	for _, path := range []string{own, own + "_dp1", other} {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}

	c.Release()

	left, err := os.ReadDir(at.Sockets)
	if err != nil || len(left) != 1 || at.Sockets+"/"+left[0].Name() != other {
		t.Errorf("left %v, %v", left, err)
	}
}

// TestSiteValidate: engines need an address that others can name, and paths that fit into a socket's address.
func TestSiteValidate(t *testing.T) {
	for _, c := range []struct {
		site Site
		want string
	}{
		{Site{Host: "10.0.0.1", Sockets: "/run/stator"}, ""},
		{Site{Host: "2001:db8::1"}, ""},
		{Site{Host: "0.0.0.0"}, `advertised address "0.0.0.0" must be an IP of this host, such as 10.0.0.1`},
		{Site{Host: "fe80::1%eth0"}, `advertised address "fe80::1%eth0" must be an IP of this host, such as 10.0.0.1`},
		{Site{Host: "node-1"}, `advertised address "node-1" must be an IP of this host, such as 10.0.0.1`},
		{Site{Host: "::1", Sockets: "/" + strings.Repeat("x", 99)}, "has 20 bytes too many for Unix sockets in it"},
	} {
		err := c.site.Validate()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c.site, err)
		}
	}
	if got := (&Site{Host: "2001:db8::1"}).address(80); got != "[2001:db8::1]:80" {
		t.Errorf("address %s", got)
	}
}
