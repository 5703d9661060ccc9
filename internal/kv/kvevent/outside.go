package kvevent

import (
	"strings"

	"github.com/tinylib/msgp/msgp"

	"github.com/stator-project/stator/internal/fleet"
)

// decodeOutside reads one message of a cache outside engines into b: vLLM's shape, as LMCache's coordinator publishes it.
//
// Such a cache has no device. A medium that is not known, and none, is the external tier. Its events name neither adapters nor cache salts,
// so blocks of prompts with a salt are found by no prompt. LMCache's blocks are chunks of several blocks of the engine: see Batch.Split.
func decodeOutside(payload []byte, lim Limits, b *Batch) error {
	d := vllmDecoder{b: b, lim: lim, slowTiersHaveKeys: true, outside: true}
	return d.message(payload)
}

// lmcacheHost is the medium of LMCache's host memory. Its slower storage is "lmcache-l2-" and the name of a backend.
const lmcacheHost = "lmcache-l1"

// tierOutside is the tier of an event of a cache outside engines.
func (f *vllmFields) tierOutside() fleet.Tier {
	switch t, known := f.tier(); {
	case string(f.medium) == lmcacheHost, known && t == fleet.Host:
		return fleet.Host
	case known && t == fleet.Disk:
		return fleet.Disk
	case strings.EqualFold(text(f.medium), "cpu"):
		return fleet.Host
	}
	return fleet.External
}

// DecodeTime returns the time of a message of vLLM's shape, without its events; 0 if it has none.
func DecodeTime(payload []byte) float64 {
	_, raw, err := msgp.ReadArrayHeaderBytes(payload)
	if err != nil {
		return 0
	}
	seconds, _, err := readSeconds(raw)
	if err != nil {
		return 0
	}
	return seconds
}

// maxParts bounds the parts of one block, and maxCut the parts of all blocks in a message. A chunk of 256 tokens has 16 blocks of 16.
const maxParts, maxCut = 1024, 1 << 21

// split cuts the blocks of an event if their size is a multiple of b.Split. Media are named by block, and the attention of a sliding window
// ends at blocks, so these stay as they are.
func (b *Batch) split(s *stored) {
	if b.Split <= 0 || s.blockSize <= b.Split || s.blockSize%b.Split != 0 || s.window != 0 || s.extra != nil && len(s.extra.words) > 0 {
		return
	}
	n := s.blockSize / b.Split
	if hashes, ok := b.appendParts(s.hashes, n); ok {
		b.memory.parts = max(b.memory.parts, n)
		s.hashes, s.blockSize = hashes, b.Split
	}
}

// appendParts appends the hashes of the n parts of each block to the batch's hashes, and returns them. The last part of a block has the
// block's hash, so that the next block finds its parent. It returns false if there are too many.
func (b *Batch) appendParts(hashes []EngineHash, n int) (parts []EngineHash, ok bool) {
	from := len(b.hashes)
	if n > maxParts || len(hashes)*n > maxCut-from {
		return nil, false
	}
	for _, h := range hashes {
		for i := n - 1; i >= 0; i-- {
			b.hashes = append(b.hashes, h^EngineHash(uint64(i)*0x9e3779b97f4a7c15))
		}
	}
	return b.hashes[from:len(b.hashes):len(b.hashes)], true
}
