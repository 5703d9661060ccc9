package session

import (
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// peer returns the process at the other end and a descriptor of it, which the caller closes. It returns an error if another user has it.
// After an error the descriptor is -1, which is none.
func peer(conn *net.UnixConn) (pid, process int, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, -1, err
	}
	var cred *unix.Ucred
	var failed error
	err = raw.Control(func(fd uintptr) { cred, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err := errors.Join(err, failed); err != nil {
		return 0, -1, err
	}
	if uid := int(cred.Uid); uid != os.Getuid() && uid != 0 {
		return 0, -1, fmt.Errorf("process %d belongs to user %d: only user %d and root are served", cred.Pid, uid, os.Getuid())
	}

	process, err = unix.PidfdOpen(int(cred.Pid), 0)
	if err != nil {
		return 0, -1, fmt.Errorf("open process %d: %w", cred.Pid, err)
	}
	return int(cred.Pid), process, nil
}
