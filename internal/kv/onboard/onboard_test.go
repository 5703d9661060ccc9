package onboard

import (
	"testing"
	"time"
)

// perBlock is a prompt of which each block takes that long to compute.
func perBlock(d time.Duration) func(int) time.Duration {
	return func(n int) time.Duration { return time.Duration(n) * d }
}

func TestCut(t *testing.T) {
	const ms = time.Millisecond
	host := Part{Blocks: 10, Latency: ms, Block: ms}
	disk := Part{Blocks: 20, Latency: 5 * ms, Block: 4 * ms}
	busy := host
	busy.Wait = 50 * ms

	for _, c := range []struct {
		name    string
		parts   []Part
		compute time.Duration // of a block
		blocks  int
		took    time.Duration
	}{
		{"nothing is cached", nil, 5 * ms, 0, 0},
		{"a fast tier", []Part{host}, 5 * ms, 10, 11 * ms},
		{"computing is as fast", []Part{host}, 11 * ms / 10, 0, 0},
		{"a busy tier", []Part{busy}, 5 * ms, 0, 0},
		{"a busy tier that is worth the wait", []Part{busy}, 7 * ms, 10, 61 * ms},
		{"both tiers, at the same time", []Part{host, disk}, 5 * ms, 30, 85 * ms},
		{"the second tier is too slow", []Part{host, disk}, 2 * ms, 10, 11 * ms},
		{"the second tier pays for the first", []Part{busy, disk}, 5 * ms, 30, 85 * ms},
		{"an empty part", []Part{{}, host}, 5 * ms, 10, 11 * ms},
	} {
		blocks, took := Cut(c.parts, perBlock(c.compute))
		if blocks != c.blocks || took != c.took {
			t.Errorf("%s: %d blocks in %v, want %d in %v", c.name, blocks, took, c.blocks, c.took)
		}
	}
}
