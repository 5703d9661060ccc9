//go:build linux

package child

import (
	"net"
	"net/netip"
	"os"
	"os/exec"
	"testing"
)

// TestOthersListen: a listener of this process is its own, and another process's for a process beside it. Of an
// address where nothing listens, or a process that is gone, nothing is known.
func TestOthersListen(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	all, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = all.Close() }()
	at := netip.MustParseAddrPort(ln.Addr().String())
	atAll := netip.AddrPortFrom(at.Addr(), uint16(all.Addr().(*net.TCPAddr).Port))

	other := exec.Command("sleep", "60")
	other.SysProcAttr = attr(false)
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Process.Kill(); _ = other.Wait() }()

	for _, address := range []netip.AddrPort{at, atAll} {
		if OthersListen(os.Getpid(), address) {
			t.Errorf("%s: this process listens there itself", address)
		}
		if !OthersListen(other.Process.Pid, address) {
			t.Errorf("%s: another process listens there", address)
		}
	}
	if OthersListen(other.Process.Pid, netip.MustParseAddrPort("127.0.0.1:1")) || OthersListen(1<<30, at) {
		t.Error("something is claimed that is not known")
	}
}

// TestParseLocal reads addresses as the kernel writes them on a little-endian machine.
func TestParseLocal(t *testing.T) {
	for text, want := range map[string]string{
		"0100007F:1F90":                         "127.0.0.1:8080",
		"00000000000000000000000001000000:0050": "[::1]:80",
		"0000000000000000FFFF00000100007F:0050": "127.0.0.1:80",
		"zz:0050":                               "invalid AddrPort",
		"0100007F":                              "invalid AddrPort",
	} {
		got, _ := parseLocal(text)
		if got.String() != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}
