package tokenizer

// pieceBatch is the number of pieces that are cut before the first of them is encoded.
const pieceBatch = 16

// encodeSplit cuts s with a scanner and encodes the pieces. Scanned is s, or the text that the scanner reads for it.
//
// The cache of pieces is as large as a core's own cache, so many look-ups wait for memory. A batch of pieces is cut
// first, and loadEntries then waits for the entries of all of them at once.
func (e *encoder) encodeSplit(s, scanned string, split splitter) {
	var ends [pieceBatch]int
	var hashes [pieceBatch]uint64
	for i := 0; i < len(s) && !e.stopped(); {
		n := 0
		for j := i; j < len(s) && j-i < checkBytes && n < pieceBatch; n++ {
			ends[n] = split(scanned, j)
			hashes[n] = hash(bytesOf(s[j:ends[n]]))
			j = ends[n]
		}

		e.loadEntries(hashes[:n])
		for k := 0; k < n && !e.stopped(); k++ {
			e.encodeHashed(s[i:ends[k]], hashes[k])
			i = ends[k]
		}
	}
}

// loadEntries reads the cache entries of pieces with these hashes, and the slots of the vocabulary for pieces that
// the cache lacks. The reads do not depend on each other, so the processor waits for all of them at the same time.
func (e *encoder) loadEntries(hashes []uint64) {
	var sum uint64
	slots := e.t.vocab.slots
	for _, h := range hashes {
		if e.cache[h>>(64-cacheBits)].hash != h {
			sum += uint64(slots[int(h)&(len(slots)-1)].id)
		}
	}
	e.loaded = sum // without a use of the sum the compiler could remove the reads
}
