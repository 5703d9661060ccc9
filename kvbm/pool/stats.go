package pool

import (
	"iter"
	"time"

	"github.com/stator-project/stator/internal/kv/block"
)

// Info describes a slot.
type Info struct {
	State State
	// Key, Priority and Until belong to an active or inactive slot. Until is the end of its pin, and zero without one.
	Key      block.Key
	Priority uint8
	Until    time.Time
	// References counts how often the slot is acquired.
	References int
}

// Slot describes slot i. It panics if there is no such slot.
func (p *Pool) Slot(i int) Info {
	s := &p.slots[i]
	return Info{State: s.state, Key: s.key, Priority: s.priority, Until: moment(s.until), References: int(s.refs)}
}

// All iterates over the registered blocks and their slots. The pool must not change meanwhile.
func (p *Pool) All() iter.Seq2[int, block.Key] {
	return func(yield func(int, block.Key) bool) {
		for i := range p.slots {
			if s := &p.slots[i]; (s.state == Active || s.state == Inactive) && !yield(i, s.key) {
				return
			}
		}
	}
}

// AppendKeys appends the keys of the registered blocks in slots from and up to, but not including, to.
func (p *Pool) AppendKeys(keys []block.Key, from, to int) []block.Key {
	for i := from; i < to; i++ {
		if s := &p.slots[i]; s.state == Active || s.state == Inactive {
			keys = append(keys, s.key)
		}
	}
	return keys
}

// Stats counts slots and operations.
type Stats struct {
	// Slots by state. Their sum is the size of the pool.
	Reset       int `json:"reset"`
	Partial     int `json:"partial"`
	Complete    int `json:"complete"`
	Active      int `json:"active"`
	Inactive    int `json:"inactive"`
	Leaving     int `json:"leaving"`
	Quarantined int `json:"quarantined"`
	// Pinned counts the inactive slots that have a pin. A pin that has ended counts until Take needs a slot.
	Pinned int `json:"pinned"`
	// Taken and Evicted count slots taken and blocks evicted, and Demoted those evicted by Take in spite of a pin.
	Taken   uint64 `json:"-"`
	Evicted uint64 `json:"-"`
	Demoted uint64 `json:"-"`
	// Duplicates counts blocks that were registered and had a slot already.
	Duplicates uint64 `json:"-"`
}

// Stats returns the counts of now.
func (p *Pool) Stats() Stats {
	s := p.stats
	s.Reset = p.counts[Reset]
	s.Partial = p.counts[Partial]
	s.Complete = p.counts[Complete]
	s.Active = p.counts[Active]
	s.Inactive = p.counts[Inactive]
	s.Leaving = p.counts[Leaving]
	s.Quarantined = p.counts[Quarantined]
	s.Pinned = len(p.pinned.heap)
	return s
}
