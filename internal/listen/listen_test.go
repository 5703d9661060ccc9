package listen

import (
	"net"
	"path/filepath"
	"strings"
	"testing"
)

// TestTakenAddress names the address and the flag.
func TestTakenAddress(t *testing.T) {
	ln, err := On("127.0.0.1:0", "--x")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	address := ln.Addr().String()

	want := address + " is taken by another program: end it, or choose another address with --x"
	if err := Check(address, "--x"); err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	if err := Check("127.0.0.1:0", "--x"); err != nil {
		t.Error(err)
	}
	if _, err := On("nowhere", "--x"); err == nil || !strings.Contains(err.Error(), "listen on nowhere (--x)") {
		t.Error(err)
	}
}

// TestStaleSocket replaces a socket without a process, and refuses one with a process.
func TestStaleSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.sock")
	first, err := On("unix://"+path, "--x")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := On("unix://"+path, "--x"); err == nil || !strings.Contains(err.Error(), "in use by another process") {
		t.Error(err)
	}

	first.(*net.UnixListener).SetUnlinkOnClose(false)
	_ = first.Close()
	second, err := On("unix://"+path, "--x")
	if err != nil {
		t.Fatal(err)
	}
	_ = second.Close()
}
