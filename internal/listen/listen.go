// Package listen opens listeners for flags, with errors that name the flag and the remedy.
//
// [Doors] protects what other machines can reach:
//
//	Listener        loopback           Unix socket      beyond loopback
//	for Envoys      TLS where given    file permission  TLS with certificates of both sides
//	for operators   token where given  mode 0600        token, and TLS
//
// --insecure lifts the TLS of the last column, and not the token. Without certificates of clients (--tls-client-ca none), or with a
// self-signed certificate (--tls-self-signed), TLS protects against eavesdroppers alone, which is logged. Certificates, keys and tokens are
// files. They are examined for changes when a client connects, once a second at most. New files that cannot be used are logged, and the
// old content stays in force.
//
// All functions are safe for concurrent use. Fields of Doors are not changed once a listener is open.
package listen

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"
)

// dialTimeout bounds the check whether a socket is in use.
const dialTimeout = time.Second

// On listens on ip:port or unix:///path. flag names the flag that has the address, for errors. A socket
// that a process left behind is replaced.
func On(address, flag string) (net.Listener, error) {
	path, isUnix := strings.CutPrefix(address, unixPrefix)
	if isUnix {
		if err := removeStale(path); err != nil {
			return nil, err
		}
		return open("unix", path, address, flag)
	}
	return open("tcp", address, address, flag)
}

func open(network, where, address, flag string) (net.Listener, error) {
	ln, err := net.Listen(network, where)
	switch {
	case err == nil:
		return ln, nil
	case strings.Contains(err.Error(), "address already in use"):
		return nil, fmt.Errorf("%s is taken by another program: end it, or choose another address with %s", address, flag)
	}
	return nil, fmt.Errorf("listen on %s (%s): %w", address, flag, err)
}

// removeStale removes the socket of a process that has ended.
func removeStale(path string) error {
	c, err := net.DialTimeout("unix", path, dialTimeout)
	if err == nil {
		_ = c.Close()
		return fmt.Errorf("the socket %s is in use by another process", path)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove stale socket: %w", err)
	}
	return nil
}

// Check reports whether ip:port can be listened on. It is for addresses on which another process listens
// later, whose error would come late.
func Check(address, flag string) error {
	ln, err := open("tcp", address, address, flag)
	if err != nil {
		return err
	}
	return ln.Close()
}
