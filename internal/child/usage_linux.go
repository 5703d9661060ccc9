package child

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// usersOf returns the processes that have files of the folder, without this one. complete is false if a process could not be
// read.
func usersOf(folder string) (users map[string][]int, complete bool) {
	users, complete = map[string][]int{}, true
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return users, false
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		has, err := usedBy(pid, folder)
		if err != nil && !os.IsNotExist(err) {
			complete = false
		}
		for path := range has.all {
			users[path] = append(users[path], pid)
		}
	}
	return users, complete
}

// usage lists the files and sockets of one process: files of the folder, the ones it has for writing, and inodes of sockets.
type usage struct{ all, writes, sockets map[string]bool }

// usedBy returns the usage of a process: the files of the folder that it has mapped, even if they are closed since, and the files
// that it has open, even if they are not mapped. Libraries do both: vLLM's region of offloaded blocks is mapped, and a semaphore
// of Python's multiprocessing is mapped too, while a queue has a descriptor. It is an error if the process has ended, or must not
// be read.
func usedBy(pid int, folder string) (usage, error) {
	u := usage{map[string]bool{}, map[string]bool{}, map[string]bool{}}
	mapped, err := os.Open(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return u, err
	}
	defer func() { _ = mapped.Close() }()
	u.readMaps(mapped, folder)
	return u, u.readOpen(pid, folder)
}

// readMaps reads lines such as "7f04 rw-s 00000000 00:1a 12 /dev/shm/name".
func (u *usage) readMaps(mapped *os.File, folder string) {
	const minFields = 6
	lines := bufio.NewScanner(mapped)
	for lines.Scan() {
		// The path of a file that is removed ends in " (deleted)", so it is the path of no file in the listing.
		line := lines.Text()
		at := strings.Index(line, " "+folder+"/")
		if at < 0 || len(strings.Fields(line)) < minFields {
			continue
		}
		// Private memory is a copy: only writes to shared memory reach the file.
		path, perms := line[at+1:], strings.Fields(line)[1]
		u.all[path] = true
		if strings.HasPrefix(perms[1:], "w") && strings.HasSuffix(perms, "s") {
			u.writes[path] = true
		}
	}
}

// readOpen reads the open files of a process.
func (u *usage) readOpen(pid int, folder string) error {
	at := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(at)
	if err != nil {
		return err
	}
	for _, e := range entries {
		target, err := os.Readlink(filepath.Join(at, e.Name()))
		if err != nil {
			continue // it was closed
		}
		if inode, ok := strings.CutPrefix(target, "socket:["); ok {
			u.sockets[strings.TrimSuffix(inode, "]")] = true
		}
		if strings.HasPrefix(target, folder+"/") {
			u.all[target] = true
			u.writes[target] = u.writes[target] || isWritable(pid, e.Name())
		}
	}
	return nil
}

// isWritable reports whether a descriptor is open for writing. The kernel shows the flags of open(2) in octal, in a line such as
// "flags:	0100002".
func isWritable(pid int, descriptor string) bool {
	const octal = 8
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%s", pid, descriptor))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(text)) {
		value, ok := strings.CutPrefix(line, "flags:")
		if !ok {
			continue
		}
		flags, err := strconv.ParseUint(strings.TrimSpace(value), octal, 64)
		return err == nil && flags&syscall.O_ACCMODE != syscall.O_RDONLY
	}
	return false
}

// boundSockets returns the absolute paths to which Unix sockets are bound, by inode. ok is false if they cannot be read.
func boundSockets() (all map[string]string, ok bool) {
	const fields = 8 // num, refcount, protocol, flags, type, state, inode, path
	file, err := os.Open("/proc/self/net/unix")
	if err != nil {
		return nil, false
	}
	defer func() { _ = file.Close() }()

	all = map[string]string{}
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		f := strings.SplitN(strings.Join(strings.Fields(lines.Text()), " "), " ", fields)
		if len(f) == fields && strings.HasPrefix(f[fields-1], "/") {
			all[f[fields-2]] = f[fields-1]
		}
	}
	return all, lines.Err() == nil
}
