package pool

import (
	"errors"
	"fmt"
	"time"

	"github.com/stator-project/stator/internal/kv/block"
)

// Errors of the operations.
var (
	// ErrFull is the error of Take while every slot is in use, pinned or quarantined.
	ErrFull = errors.New("no slot is free: all are in use, pinned or quarantined")
	// ErrState is the error of an operation that the state of a slot does not permit.
	ErrState = errors.New("the state of the slot does not permit this")
)

// MaxSlots is the highest number of slots of a pool.
const MaxSlots = 1 << 28

// State is the state of a slot, as the package describes them.
type State uint8

// The states of a slot.
const (
	Reset State = iota
	Partial
	Complete
	Active
	Inactive
	Leaving
	Quarantined
	states // their number
)

func (s State) String() string {
	if s >= states {
		return fmt.Sprintf("state %d", uint8(s))
	}
	return [states]string{"reset", "partial", "complete", "active", "inactive", "leaving", "quarantined"}[s]
}

// Pool has the slots of one tier.
//
// Invariants: a reset slot is in free. An inactive slot is in pinned if it has a pin, and otherwise in unpinned. Active and
// inactive slots, and no others, are in keys.
type Pool struct {
	slots    []slot
	free     []int32 // a stack
	unpinned queue   // by priority and time of use
	pinned   queue   // by the end of the pin
	keys     index

	clock  uint64 // of uses
	counts [states]int
	stats  Stats
}

type slot struct {
	key      block.Key
	used     uint64 // the pool's clock at the last use
	until    int64  // the end of the pin in Unix nanoseconds; 0 without one
	refs     int32
	at       int32 // its position in free, unpinned or pinned, if it is in one of them
	state    State
	priority uint8
}

// New returns a pool of reset slots, numbered from 0. It panics if their number is not from 1 to MaxSlots.
func New(slots int) *Pool {
	if slots < 1 || slots > MaxSlots {
		panic(fmt.Sprintf("a pool of %d slots: from 1 to %d are possible", slots, MaxSlots))
	}

	p := &Pool{slots: make([]slot, slots), free: make([]int32, 0, slots), keys: newIndex(slots)}
	p.unpinned = newQueue(p.slots, func(a, b *slot) bool {
		return a.priority < b.priority || a.priority == b.priority && a.used < b.used
	})
	p.pinned = newQueue(p.slots, func(a, b *slot) bool {
		return a.until < b.until || a.until == b.until && a.used < b.used
	})

	for i := slots - 1; i >= 0; i-- { // so that slot 0 is taken first
		p.pushFree(int32(i))
	}
	p.counts[Reset] = slots
	return p
}

// Evicted describes a block that had to leave its slot.
type Evicted struct {
	// Valid is whether a block was evicted. The other fields are zero if not.
	Valid    bool
	Key      block.Key
	Priority uint8
	// Until is the end of the block's pin, and zero without one.
	Until time.Time
}

// Take returns a slot for its caller to write to, which then calls Complete, Drop or Quarantine. If no slot is reset it evicts a block,
// whose bytes stay in the slot until the caller overwrites them: time to move them to another tier. Pinned blocks are evicted only if
// demote is set, after all others, and the pin that ends first goes first. The error is ErrFull.
func (p *Pool) Take(now time.Time, demote bool) (i int, evicted Evicted, err error) {
	if len(p.free) == 0 {
		p.endPins(now)
		victim := p.unpinned.first()
		if victim < 0 && demote {
			victim = p.pinned.first()
		}
		if victim < 0 {
			return 0, Evicted{}, ErrFull
		}
		evicted = p.forget(victim)
		p.stats.Evicted++
		if !evicted.Until.IsZero() {
			p.stats.Demoted++
		}
	}

	last := p.free[len(p.free)-1]
	p.free = p.free[:len(p.free)-1]
	p.setState(last, Partial)
	p.stats.Taken++
	return int(last), evicted, nil
}

// Complete ends the writing to a slot.
func (p *Pool) Complete(i int) error {
	if err := p.check(i, "complete", Partial, Partial); err != nil {
		return err
	}
	p.setState(int32(i), Complete)
	return nil
}

// Register gives a complete slot its key, and its caller a reference to the slot that it returns. If another slot has the key
// already, that one is returned and the given one is reset. The higher priority of both counts.
func (p *Pool) Register(i int, key block.Key, priority uint8) (registered int, err error) {
	if err := p.check(i, "register", Complete, Complete); err != nil {
		return 0, err
	}

	if other := p.keys.find(p.slots, key); other >= 0 {
		p.reset(int32(i))
		p.stats.Duplicates++
		p.reference(other)
		p.slots[other].priority = max(p.slots[other].priority, priority)
		return int(other), nil
	}

	s := &p.slots[i]
	s.key = key
	s.priority = priority
	s.refs = 1
	p.keys.addSlot(p.slots, int32(i))
	p.setState(int32(i), Active)
	return i, nil
}

// Adopt registers a block whose bytes were in a slot before the pool was made, such as the blocks of a file, as the most recently used
// one. It returns an error if the key is there already.
func (p *Pool) Adopt(i int, key block.Key, priority uint8, until time.Time) error {
	if err := p.check(i, "adopt", Reset, Reset); err != nil {
		return err
	}
	if p.Has(key) {
		return fmt.Errorf("adopt slot %d: block %v is in another slot", i, key)
	}

	p.removeFree(int32(i))
	s := &p.slots[i]
	s.key = key
	s.priority = priority
	s.until = nanoseconds(until)
	p.keys.addSlot(p.slots, int32(i))
	p.rest(int32(i))
	return nil
}

// Has reports whether a block is registered under the key.
func (p *Pool) Has(key block.Key) bool { return p.keys.find(p.slots, key) >= 0 }

// Find returns the slot of a key without a reference, which does not count as a use. It returns false if no slot has the key.
func (p *Pool) Find(key block.Key) (i int, ok bool) {
	found := p.keys.find(p.slots, key)
	return int(found), found >= 0
}

// Match returns how many of the keys are registered, from the first on without a gap.
func (p *Pool) Match(keys []block.Key) int {
	for n, key := range keys {
		if !p.Has(key) {
			return n
		}
	}
	return len(keys)
}

// Acquire returns the slot of a key with a reference, which its caller gives back by Release. It returns false if no slot has
// the key.
func (p *Pool) Acquire(key block.Key) (i int, ok bool) {
	found := p.keys.find(p.slots, key)
	if found < 0 {
		return 0, false
	}
	p.reference(found)
	return int(found), true
}

// Release gives a reference back.
func (p *Pool) Release(i int) error {
	if err := p.check(i, "release", Active, Leaving); err != nil {
		return err
	}

	s := &p.slots[i]
	s.refs--
	if s.refs > 0 {
		return nil
	}
	if s.state == Leaving {
		p.reset(int32(i))
		return nil
	}
	p.rest(int32(i))
	return nil
}

// Drop resets a slot that was taken, because its bytes are not wanted.
func (p *Pool) Drop(i int) error {
	if err := p.check(i, "drop", Partial, Complete); err != nil {
		return err
	}
	p.reset(int32(i))
	return nil
}

// Quarantine keeps a slot that was taken from every use, because a transfer that was given up may still write to it.
func (p *Pool) Quarantine(i int) error {
	if err := p.check(i, "quarantine", Partial, Complete); err != nil {
		return err
	}
	p.setState(int32(i), Quarantined)
	return nil
}

// Lift ends the quarantine of a slot. Its caller is certain that nothing writes to the slot any more.
func (p *Pool) Lift(i int) error {
	if err := p.check(i, "lift", Quarantined, Quarantined); err != nil {
		return err
	}
	p.reset(int32(i))
	return nil
}

// Pin keeps the block of a key from eviction until a time, as Take describes, or until the end of its pin if that is later. A zero time
// ends its pin. It returns false if no slot has the key.
func (p *Pool) Pin(key block.Key, until time.Time) bool {
	i := p.keys.find(p.slots, key)
	if i < 0 {
		return false
	}

	inactive := p.slots[i].state == Inactive
	if inactive {
		p.queueOf(i).remove(i)
	}
	end := nanoseconds(until)
	if end != 0 {
		end = max(end, p.slots[i].until)
	}
	p.slots[i].until = end
	if inactive {
		p.queueOf(i).push(i)
	}
	return true
}

// Evict takes the key from its block, pinned or not. The slot is reset when no reference is left. The result is not valid if no
// slot has the key.
func (p *Pool) Evict(key block.Key) Evicted {
	i := p.keys.find(p.slots, key)
	if i < 0 {
		return Evicted{}
	}
	p.stats.Evicted++
	return p.forget(i)
}

// Flush evicts all blocks, pinned ones too, and returns their number. Slots that are partial, complete or quarantined stay as
// they are.
func (p *Pool) Flush() (blocks int) {
	for i := range p.slots {
		if s := p.slots[i].state; s == Active || s == Inactive {
			p.forget(int32(i))
			blocks++
		}
	}
	p.stats.Evicted += uint64(blocks)
	return blocks
}
