package kvevent

import (
	"unsafe"

	"github.com/stator-project/stator/internal/kv/blockhash"
)

// Clone returns a copy of the batch's events, rank and time, whose memory is its own. All hashes of the copy share
// two allocations.
func (b *Batch) Clone() *Batch {
	hashes, blocks := b.countHashes()
	c := &Batch{
		Rank: b.Rank, Worker: b.Worker, Seconds: b.Seconds, Unknown: b.Unknown, Skipped: b.Skipped,
		Events: make([]Event, len(b.Events)),
		hashes: make([]EngineHash, 0, hashes), blocks: make([]blockhash.Block, 0, blocks),
	}

	for i, e := range b.Events {
		c.hashes, e.Hashes = appendPart(c.hashes, e.Hashes)
		c.blocks, e.Blocks = appendPart(c.blocks, e.Blocks)
		c.Events[i] = e
	}
	return c
}

// appendPart appends part to all, and returns it with the copy, which cannot grow into what follows it.
func appendPart[T any](all, part []T) (extended, copied []T) {
	if len(part) == 0 {
		return all, nil
	}
	from := len(all)
	all = append(all, part...)
	return all, all[from:len(all):len(all)]
}

// CloneBytes returns the memory that a clone of the batch needs, in bytes.
func (b *Batch) CloneBytes() int {
	hashes, blocks := b.countHashes()
	return int(unsafe.Sizeof(Batch{})) + len(b.Events)*int(unsafe.Sizeof(Event{})) + 8*(hashes+blocks)
}

// countHashes returns how many hashes and content hashes the events have.
func (b *Batch) countHashes() (hashes, blocks int) {
	for i := range b.Events {
		hashes += len(b.Events[i].Hashes)
		blocks += len(b.Events[i].Blocks)
	}
	return hashes, blocks
}
