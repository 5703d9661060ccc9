package kvevent

// maxSalted bounds the salted blocks of a rank that are kept: about 2 MB when full. The oldest are dropped
// first. Blocks after a dropped one are then hashed without the salt. So the salted prompt finds less than
// there is, and no other prompt finds more.
const maxSalted = 1 << 16

// memory has the values that one rank's engine reports once and on which later events depend.
type memory struct {
	seeds map[EngineHash]uint64 // salted block -> the seed of its chain; nil until a salt is seen
	ring  []EngineHash          // the keys of seeds, oldest at next
	next  int
	// windows has the window of each attention group: 0 for full attention, unindexed for a group whose events
	// are skipped. No engine has more groups; they would count as full attention.
	windows [64]int32
	// parts is the largest number of parts into which a block was cut: see Batch.Split. A removal names the block alone.
	parts int

	trt trtMemory

	// The decoders' state, kept so that it is not allocated for each message.
	extra  extraKeys
	json   jsonReader
	pack   packReader
	trtllm trtDecoder
	dynamo dynamoDecoder
}

// inherit returns the seed of the chain that parent belongs to; ok is false if that has no salt.
func (m *memory) inherit(parent EngineHash) (seed uint64, ok bool) {
	seed, ok = m.seeds[parent]
	return seed, ok
}

// remember keeps the seed of salted blocks, and drops the oldest ones beyond maxSalted.
func (m *memory) remember(hashes []EngineHash, seed uint64) {
	if m.seeds == nil {
		m.seeds = make(map[EngineHash]uint64)
	}
	for _, h := range hashes {
		if _, known := m.seeds[h]; known {
			m.seeds[h] = seed
			continue
		}
		if len(m.ring) < maxSalted {
			m.ring = append(m.ring, h)
		} else {
			delete(m.seeds, m.ring[m.next])
			m.ring[m.next] = h
			m.next = (m.next + 1) % maxSalted
		}
		m.seeds[h] = seed
	}
}

func (m *memory) forgetSalts() {
	clear(m.seeds)
	m.ring, m.next = m.ring[:0], 0
}

// unindexed is the window of a group whose blocks do not correspond to a prompt's.
const unindexed = -1

// groupOf is the number of an attention group: the reported one, or the window if none was reported (-1).
func groupOf(reported int, window int32) int {
	switch {
	case window <= 0:
		return 0
	case reported < 0:
		return int(window)
	}
	return reported
}

func (m *memory) setGroup(group int, window int32) {
	if group >= 0 && group < len(m.windows) {
		m.windows[group] = window
	}
}

func (m *memory) window(group int) int32 {
	if group < 0 || group >= len(m.windows) {
		return 0
	}
	return m.windows[group]
}
