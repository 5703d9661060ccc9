//go:build linux

package main

import (
	"bytes"
	"context"
	"time"

	"github.com/stator-project/stator/kvbm/host"
)

var blockSizes = []int{64 << 10, 512 << 10, 2 << 20}

// hostBytes is the size of the arena and of the ordinary slice: more than the caches of a processor.
const hostBytes = 256 << 20

// benchHost copies blocks into the slots of an arena, and into a slice, by one goroutine.
func benchHost(ctx context.Context, o options) (rows []row, err error) {
	for _, size := range blockSizes {
		slots := int(min(hostBytes, o.bytes)) / size
		arena, err := host.New(host.Config{Slots: slots, SlotBytes: size})
		if err != nil {
			return nil, err
		}
		for arena.ReadyBytes() < arena.Bytes() {
			time.Sleep(time.Millisecond)
		}

		ordinary := bytes.Repeat([]byte{1}, slots*size)
		src := bytes.Repeat([]byte{2}, size)
		name := "copy"
		if arena.HugePages() {
			name = "copy, huge pages"
		}
		r, err := compare(ctx, o, name, size,
			side{1, func(_, n int) error { copy(arena.Slot(n%slots), src); return nil }},
			side{1, func(_, n int) error { copy(ordinary[n%slots*size:][:size], src); return nil }})
		if err != nil {
			return nil, err
		}
		rows = append(rows, r)
		arena.Close()
	}
	return rows, nil
}
