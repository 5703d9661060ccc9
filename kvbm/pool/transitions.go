package pool

import (
	"fmt"
	"math"
	"time"
)

// check returns an error unless slot i exists and its state is one of the two.
func (p *Pool) check(i int, verb string, one, other State) error {
	if i < 0 || i >= len(p.slots) {
		return fmt.Errorf("%s slot %d: %w: there are %d slots", verb, i, ErrState, len(p.slots))
	}
	if s := p.slots[i].state; s != one && s != other {
		return fmt.Errorf("%s slot %d: %w: it is %v", verb, i, ErrState, s)
	}
	return nil
}

// setState changes the state of a slot, and nothing else.
func (p *Pool) setState(i int32, s State) {
	p.counts[p.slots[i].state]--
	p.slots[i].state = s
	p.counts[s]++
}

// reset frees a slot that is in no queue and has no key.
func (p *Pool) reset(i int32) {
	p.slots[i] = slot{state: p.slots[i].state}
	p.setState(i, Reset)
	p.pushFree(i)
}

// reference adds a reference to a registered slot.
func (p *Pool) reference(i int32) {
	if p.slots[i].state == Inactive {
		p.queueOf(i).remove(i)
		p.setState(i, Active)
	}
	p.slots[i].refs++
}

// rest makes a registered slot inactive, as the most recently used one.
func (p *Pool) rest(i int32) {
	p.clock++
	p.slots[i].used = p.clock
	p.setState(i, Inactive)
	p.queueOf(i).push(i)
}

// forget takes the key from a registered slot, which is reset or leaving afterwards.
func (p *Pool) forget(i int32) Evicted {
	s := &p.slots[i]
	e := Evicted{Valid: true, Key: s.key, Priority: s.priority, Until: moment(s.until)}
	p.keys.remove(p.slots, i)

	if s.state == Inactive {
		p.queueOf(i).remove(i)
		p.reset(i)
		return e
	}
	*s = slot{state: Active, refs: s.refs}
	p.setState(i, Leaving)
	return e
}

// endPins moves the blocks whose pins have ended to the others.
func (p *Pool) endPins(now time.Time) {
	for {
		i := p.pinned.first()
		if i < 0 || p.slots[i].until > nanoseconds(now) {
			return
		}
		p.pinned.remove(i)
		p.slots[i].until = 0
		p.unpinned.push(i)
	}
}

// queueOf returns the queue that an inactive slot belongs to.
func (p *Pool) queueOf(i int32) *queue {
	if p.slots[i].until != 0 {
		return &p.pinned
	}
	return &p.unpinned
}

func (p *Pool) pushFree(i int32) {
	p.slots[i].at = int32(len(p.free))
	p.free = append(p.free, i)
}

// removeFree takes a slot out of the middle of the stack.
func (p *Pool) removeFree(i int32) {
	at := p.slots[i].at
	last := p.free[len(p.free)-1]
	p.free[at] = last
	p.slots[last].at = at
	p.free = p.free[:len(p.free)-1]
}

// nanoseconds returns a time as slots have it: 0 is none, and times that do not fit are at the ends of the range.
func nanoseconds(t time.Time) int64 {
	switch {
	case t.IsZero():
		return 0
	case t.Year() < 1970:
		return 1
	case t.Year() > 2200:
		return math.MaxInt64
	}
	return t.UnixNano()
}

func moment(nanoseconds int64) time.Time {
	if nanoseconds == 0 {
		return time.Time{}
	}
	return time.Unix(0, nanoseconds)
}
