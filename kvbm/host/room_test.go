package host

import (
	"errors"
	"testing"
	"testing/fstest"
)

func TestRoom(t *testing.T) {
	files := func(pairs ...string) fstest.MapFS {
		out := fstest.MapFS{}
		for i := 0; i < len(pairs); i += 2 {
			out[pairs[i]] = &fstest.MapFile{Data: []byte(pairs[i+1])}
		}
		return out
	}
	const memory = "MemTotal: 2000 kB\nMemAvailable:   1000 kB\n"

	for name, c := range map[string]struct {
		root fstest.MapFS
		size int64
		fits bool
	}{
		"nothing is known":            {files(), 1 << 40, true},
		"the node has room":           {files("proc/meminfo", memory), 1000 << 10, true},
		"the node has too little":     {files("proc/meminfo", memory), 1000<<10 + 1, false},
		"a group without a bound":     {files("proc/self/cgroup", "0::/a\n", "sys/fs/cgroup/a/memory.max", "max\n", "sys/fs/cgroup/a/memory.current", "5\n"), 1 << 40, true},
		"a group with too little":     {files("proc/self/cgroup", "0::/a\n", "sys/fs/cgroup/a/memory.max", "105\n", "sys/fs/cgroup/a/memory.current", "5\n"), 101, false},
		"a container's group":         {files("proc/self/cgroup", "0::/host/path\n", "sys/fs/cgroup/memory.max", "105\n", "sys/fs/cgroup/memory.current", "5\n"), 101, false},
		"a group of the first kind":   {files("proc/self/cgroup", "4:memory:/a\n", "sys/fs/cgroup/memory/a/memory.limit_in_bytes", "100\n", "sys/fs/cgroup/memory/a/memory.usage_in_bytes", "0\n"), 101, false},
		"files that cannot be parsed": {files("proc/meminfo", "MemAvailable: many kB\n", "proc/self/cgroup", "0\n::\n"), 1 << 40, true},
	} {
		err := checkRoom(c.root, c.size)
		if (err == nil) != c.fits || err != nil && !errors.Is(err, ErrRoom) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestNoRoom: an arena that is larger than all memory is refused, and nothing is mapped.
func TestNoRoom(t *testing.T) {
	_, err := New(Config{Slots: maxSlots, SlotBytes: 1 << 20, NoHugePages: true})
	if !errors.Is(err, ErrRoom) {
		t.Errorf("%v", err)
	}
}
