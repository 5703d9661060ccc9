package kvevent

// maxSalted bounds the salted blocks a rank's memory holds: about 2 MB when full. The
// oldest go first; their continuations are then hashed as if they had no salt, so that a
// salted prompt finds less of itself than there is, and nobody else finds more.
const maxSalted = 1 << 16

// memory is what one rank's events say once and mean for ever after.
type memory struct {
	seeds map[Engine]uint64 // salted block -> the seed of its chain; nil until a salt is seen
	ring  []Engine          // the keys of seeds, oldest at next
	next  int
	// windows has the window of each attention group, 0 for full attention, unindexed for a
	// group whose events are skipped. Groups beyond do not exist in practice and count as full.
	windows [64]int32

	trt trtMemory

	// Scratch, kept so that it is not made for every message.
	extra  extraKeys
	json   jsonReader
	pack   packReader
	trtllm trtDecoder
	dynamo dynamoDecoder
}

// inherit returns the seed of the chain that parent belongs to, where it has a salt.
func (m *memory) inherit(parent Engine) (seed uint64, ok bool) {
	seed, ok = m.seeds[parent]
	return seed, ok
}

func (m *memory) remember(hashes []Engine, seed uint64) {
	if m.seeds == nil {
		m.seeds = make(map[Engine]uint64)
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

// unindexed stands for a window where the group's blocks do not tell what a prompt finds.
const unindexed = -1

// groupOf is what an event says of its attention group's number.
func groupOf(said int, window int32) int {
	switch {
	case window <= 0:
		return 0
	case said < 0:
		return int(window)
	}
	return said
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
