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
	// unindexed has bit g set when attention group g does not keep whole prefixes.
	unindexed uint64

	extra extraKeys // scratch, kept for its buffers
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

// setGroup keeps whether blocks of the group can be indexed. Groups beyond 63 do not exist
// in practice and are taken as indexed.
func (m *memory) setGroup(group int, indexed bool) {
	if group < 0 || group > 63 {
		return
	}
	m.unindexed &^= 1 << group
	if !indexed {
		m.unindexed |= 1 << group
	}
}

func (m *memory) indexed(group int) bool {
	return group < 0 || group > 63 || m.unindexed&(1<<group) == 0
}
