package serve

import (
	"os"
	"strconv"
	"strings"

	"github.com/stator-project/stator/nixl/wire"
)

// status returns the counters, with the memory, the file descriptors and the threads of this process.
func (s *server) status() *wire.Status {
	c := s.counts
	c.Running, c.Peers = len(s.running), s.engine.Peers()
	if text, err := os.ReadFile("/proc/self/statm"); err == nil {
		if fields := strings.Fields(string(text)); len(fields) > 1 {
			pages, _ := strconv.ParseUint(fields[1], 10, 64)
			c.RSSBytes = pages * uint64(os.Getpagesize())
		}
	}
	if fds, err := os.ReadDir("/proc/self/fd"); err == nil {
		c.FDs = len(fds)
	}
	if tasks, err := os.ReadDir("/proc/self/task"); err == nil {
		c.Threads = len(tasks)
	}
	return &c
}
