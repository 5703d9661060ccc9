package kvindex

import (
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/stator-project/stator/internal/fleet"
)

// member is one holder of a node: the holder's number, above 8 bits of how it holds the node. These are a bit
// for each tier, one for a prediction, and one for each class of sliding windows that holds it.
type member uint32

const (
	tierBits  = 8
	tierMask  = 1<<tierBits - 1
	predicted = uint8(1 << fleet.Tiers) // the bit after the bits of the tiers
)

func (m member) holder() uint32 { return uint32(m) >> tierBits }
func (m member) tiers() uint8   { return uint8(m & tierMask) }

// set is an immutable, interned set of members: two sets with equal members are the same pointer. So a change
// of holders along a prompt is a change of pointers. A set lives as long as it has references: one for each
// holderRun, and one for each edit that may use it again.
type set struct {
	members []member // sorted; no holder twice; no member without tiers
	hash    uint64   // sum of mix(member), so that a change of one member updates it
	next    *set     // guarded by the shard: the next set of the same hash
	refs    atomic.Int64
}

// bytes is the size of the set in the budget, with its entry in the map.
func (s *set) bytes() int64 { return setBytes + 4*int64(cap(s.members)) }

const setBytes = 112

// all returns the members; none of the empty set, which is nil.
func (s *set) all() []member {
	if s == nil {
		return nil
	}
	return s.members
}

// tiers returns the bits of holder in s.
func (s *set) tiers(holder uint32) uint8 {
	if i, ok := s.find(holder); ok {
		return s.members[i].tiers()
	}
	return 0
}

// find returns the position of a holder, or the position at which to insert it.
func (s *set) find(holder uint32) (int, bool) {
	return slices.BinarySearchFunc(s.all(), holder, func(m member, h uint32) int { return int(m.holder()) - int(h) })
}

// hashMember returns the hash of a member. Hashes are added up, so a weak hash would make different sets collide.
func hashMember(m member) uint64 {
	hi, lo := bits.Mul64(uint64(m)+0x9e3779b97f4a7c15, 0xe7037ed1a0b428db)
	return hi ^ lo
}

// sets interns sets. The first 4 bits of a set's hash choose its shard.
type sets struct {
	budget *budget
	shards [16]setShard
}

type setShard struct {
	mu      sync.Mutex
	byHash  map[uint64]*set // guarded by mu
	scratch []member        // guarded by mu; the new members while they are compared
}

// change returns old with the holder's bits replaced, and one reference for the caller. The caller's
// reference to old stays. The empty set is nil. ok is false if there is no room for a new set.
func (x *sets) change(old *set, holder uint32, tiers uint8) (s *set, ok bool) {
	at, had := old.find(holder)
	sum := uint64(0)
	if old != nil {
		sum = old.hash
	}
	if had {
		sum -= hashMember(old.members[at])
	}
	now := member(holder<<tierBits | uint32(tiers))
	if tiers != 0 {
		sum += hashMember(now)
	}

	shard := &x.shards[sum>>60]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	list := append(shard.scratch[:0], old.all()[:at]...)
	if tiers != 0 {
		list = append(list, now)
	}
	if had {
		at++
	}
	list = append(list, old.all()[at:]...)
	shard.scratch = list
	if len(list) == 0 {
		return nil, true
	}

	for s := shard.byHash[sum]; s != nil; s = s.next {
		if slices.Equal(s.members, list) {
			s.refs.Add(1)
			return s, true
		}
	}
	s = &set{hash: sum, members: make([]member, len(list))}
	if !x.budget.reserve(s.bytes()) {
		return nil, false
	}
	copy(s.members, list)
	s.refs.Store(1)
	s.next = shard.byHash[sum]
	shard.byHash[sum] = s
	return s, true
}

// release gives back n references. A set without references leaves its shard.
func (x *sets) release(s *set, n int64) {
	if s == nil || s.refs.Add(-n) > 0 {
		return
	}
	shard := &x.shards[s.hash>>60]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	if s.refs.Load() > 0 {
		return // change has found it, and referenced it, before this had the lock
	}

	for at, prev := shard.byHash[s.hash], (*set)(nil); at != nil; at, prev = at.next, at {
		if at != s {
			continue
		}
		switch {
		case prev != nil:
			prev.next = s.next
		case s.next != nil:
			shard.byHash[s.hash] = s.next
		default:
			delete(shard.byHash, s.hash)
		}
		x.budget.release(s.bytes())
		return
	}
}
