//go:build !linux

package session

import (
	"errors"
	"net"
)

// peer needs Linux, as the memory of a store does.
func peer(*net.UnixConn) (pid, process int, err error) { return 0, -1, errors.ErrUnsupported }
