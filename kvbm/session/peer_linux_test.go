package session

import (
	"net"
	"path/filepath"
	"testing"
)

// TestPeerErrors: without a peer there is no descriptor that the server could close in place of another file.
func TestPeerErrors(t *testing.T) {
	path := filepath.Join(t.TempDir(), "socket")
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()

	if _, process, err := peer(conn); err == nil || process != -1 {
		t.Errorf("descriptor %d, %v", process, err)
	}
}
