package tokenizer

import (
	"unsafe"

	"github.com/stator-project/stator/internal/prefetch"
)

// encodeSplit cuts s with a scanner and encodes the pieces. Scanned is s, or the text that the scanner reads for it.
//
// The cache of pieces is as large as a core's own cache, so many look-ups wait for memory. A batch of pieces is cut
// first, and the processor then loads the entries of all of them at the same time.
func (e *encoder) encodeSplit(s, scanned string, split splitter) {
	var ends [prefetch.Most]int
	var hashes [prefetch.Most]uint64
	for i := 0; i < len(s) && !e.stopped(); {
		n := 0
		for j := i; j < len(s) && j-i < checkBytes && n < len(ends); n++ {
			ends[n] = split(scanned, j)
			hashes[n] = hash(bytesOf(s[j:ends[n]]))
			j = ends[n]
		}

		e.prefetch(hashes[:n])
		for k := 0; k < n && !e.stopped(); k++ {
			e.encodeHashed(s[i:ends[k]], hashes[k])
			i = ends[k]
		}
	}
}

// prefetch begins to load the cache entries of pieces with these hashes. There is at least one.
func (e *encoder) prefetch(hashes []uint64) {
	var entries [prefetch.Most]uintptr
	for i, h := range hashes {
		entries[i] = uintptr(unsafe.Pointer(&e.cache[h>>(64-cacheBits)]))
	}
	prefetch.Lines(&entries, len(hashes))
}
