package child

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// OthersListen reports whether the sockets that listen at an address of this host all belong to other processes
// than the one of that id, its descendants and its process group.
//
//	found sockets                                               result
//	a process of the group has one of the sockets               false
//	none has, and all could be read                             true
//	nothing listens there in this network namespace             false: not known
//	the process has ended, or one of its group is not readable  false: not known
//
// It reads the files of every process of the group, so it is made for one question at the start of a process, and
// not for each probe.
func OthersListen(pid int, at netip.AddrPort) bool {
	listening := listeners("/proc/self/net", at)
	members := groupOf(pid)
	if len(listening) == 0 || len(members) == 0 {
		return false
	}

	for _, member := range members {
		holds, err := holdsAny(member, listening)
		if holds || err != nil {
			return false
		}
	}
	return true
}

// groupOf returns a process with its descendants and its process group; none if it does not run. Descendants may have
// left the group, and orphans of the group are not below the process any more, so both are needed. An id may be there
// twice.
func groupOf(pid int) []int {
	own, err := readStat(pid)
	if err != nil {
		return nil
	}

	// Both are read while processes start and end. One that starts meanwhile is found by the next question.
	members := append([]int{pid}, descendants(pid)...)
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	for _, e := range entries {
		other, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if s, err := readStat(other); err == nil && s.group == own.group {
			members = append(members, other)
		}
	}
	return members
}

// holdsAny reports whether a process has one of these sockets. A process that has ended has none; it is an error if
// the process's files must not be read.
func holdsAny(pid int, sockets map[string]bool) (bool, error) {
	folder := fmt.Sprintf("/proc/%d/fd", pid)
	files, err := os.ReadDir(folder)
	if os.IsNotExist(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}

	// A file that is closed meanwhile is no error: its socket does not listen any more.
	for _, f := range files {
		target, err := os.Readlink(filepath.Join(folder, f.Name()))
		if err == nil && sockets[target] {
			return true, nil
		}
	}
	return false, nil
}

// The columns of /proc/net/tcp, from 0.
const (
	tcpLocal  = 1
	tcpState  = 3
	tcpInode  = 9
	tcpFields = 10

	tcpListens = "0A" // the state of a listening socket
)

// listeners returns the sockets that listen at an address, as links of /proc/PID/fd name them. A socket at the address
// itself gets its connections before those at all addresses.
func listeners(net string, at netip.AddrPort) map[string]bool {
	exact, wildcard := map[string]bool{}, map[string]bool{}
	for _, name := range []string{"tcp", "tcp6"} {
		file, err := os.Open(filepath.Join(net, name))
		if err != nil {
			continue
		}
		lines := bufio.NewScanner(file)
		for lines.Scan() {
			fields := strings.Fields(lines.Text())
			if len(fields) < tcpFields || fields[tcpState] != tcpListens {
				continue
			}

			// The socket of an IPv6 server that takes all addresses gets connections to IPv4 addresses too.
			local, ok := parseLocal(fields[tcpLocal])
			if !ok || local.Port() != at.Port() {
				continue
			}

			socket := "socket:[" + fields[tcpInode] + "]"
			switch {
			case local.Addr() == at.Addr().Unmap():
				exact[socket] = true
			case local.Addr().IsUnspecified():
				wildcard[socket] = true
			}
		}
		_ = file.Close()
	}

	// The kernel prefers the socket with the more specific address, also over one of another process.
	if len(exact) > 0 {
		return exact
	}
	return wildcard
}

// parseLocal reads an address such as 0100007F:1F90: words of 32 bits in the order of the processor, and the port.
func parseLocal(text string) (netip.AddrPort, bool) {
	words, portText, _ := strings.Cut(text, ":")
	raw, err := hex.DecodeString(words)
	port, portErr := strconv.ParseUint(portText, 16, 16)
	if err != nil || portErr != nil || len(raw)%4 != 0 {
		return netip.AddrPort{}, false
	}

	// The kernel prints each word as a number, so its bytes are in network order only on big-endian machines.
	for i := 0; i < len(raw); i += 4 {
		binary.BigEndian.PutUint32(raw[i:], binary.NativeEndian.Uint32(raw[i:]))
	}
	addr, ok := netip.AddrFromSlice(raw)
	return netip.AddrPortFrom(addr.Unmap(), uint16(port)), ok
}
