package host

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"strconv"
	"strings"
)

// ErrRoom is the error of New if the node, or the process's control group, has less memory left than the arena needs. Without this check
// the kernel would end processes when the arena is used.
var ErrRoom = errors.New("too little memory is left")

// checkRoom returns ErrRoom, with both sizes, if there is less memory than size. Unknown memory is no bound. root is the file system.
func checkRoom(root fs.FS, size int64) error {
	if left := min(nodeMemory(root), groupMemory(root)); left < size {
		return fmt.Errorf("%w: %d bytes, and %d are needed: make the host tier smaller", ErrRoom, left, size)
	}
	return nil
}

// nodeMemory returns the memory that the node has left, as the kernel estimates it.
func nodeMemory(root fs.FS) int64 {
	f, err := root.Open("proc/meminfo")
	if err != nil {
		return math.MaxInt64
	}
	defer func() { _ = f.Close() }() // it was read
	for lines := bufio.NewScanner(f); lines.Scan(); {
		text, found := strings.CutPrefix(lines.Text(), "MemAvailable:")
		if !found {
			continue
		}
		if kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(text, "kB")), 10, 54); err == nil {
			return kib << 10
		}
	}
	return math.MaxInt64
}

// groupMemory returns the memory that the process's control group has left, of version 2 or 1.
func groupMemory(root fs.FS) int64 {
	text, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return math.MaxInt64
	}
	left := int64(math.MaxInt64)
	for line := range strings.Lines(string(text)) {
		part := strings.SplitN(strings.TrimSpace(line), ":", 3) // number, controllers, path
		switch {
		case len(part) < 3:
		case part[0] == "0":
			left = min(left, groupLeft(root, "sys/fs/cgroup"+part[2], "memory.max", "memory.current"))
		case part[1] == "memory":
			left = min(left, groupLeft(root, "sys/fs/cgroup/memory"+part[2], "memory.limit_in_bytes", "memory.usage_in_bytes"))
		}
	}
	return left
}

// groupLeft returns the difference of two files of a control group. In a container the path is the host's path, and the files are the
// files of the root.
func groupLeft(root fs.FS, dir, limit, used string) int64 {
	for _, d := range []string{strings.TrimSuffix(dir, "/"), "sys/fs/cgroup", "sys/fs/cgroup/memory"} {
		most, err := readNumber(root, d+"/"+limit)
		now, err2 := readNumber(root, d+"/"+used)
		if err == nil && err2 == nil {
			return max(0, most-now)
		}
	}
	return math.MaxInt64
}

func readNumber(root fs.FS, path string) (int64, error) {
	text, err := fs.ReadFile(root, path)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64) // "max" is no number, and no bound
}
