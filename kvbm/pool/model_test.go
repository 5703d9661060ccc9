package pool

import (
	"cmp"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/kv/block"
)

// model is the pool in its simplest form: a list that every operation searches.
type model struct {
	slots []modelSlot
	clock int
}

type modelSlot struct {
	state    State
	key      block.Key
	priority uint8
	until    int64 // seconds; 0 without a pin
	refs     int
	used     int
}

func (m *model) find(key block.Key) int {
	return slices.IndexFunc(m.slots, func(s modelSlot) bool { return (s.state == Active || s.state == Inactive) && s.key == key })
}

func (m *model) has(i int, states ...State) bool {
	return i < len(m.slots) && slices.Contains(states, m.slots[i].state)
}

// victim returns the slot that Take has to evict, and -1 if there is none.
func (m *model) victim(now int64, demote bool) int {
	var candidates []int
	for i, s := range m.slots {
		if s.state == Inactive && (demote || s.until == 0 || s.until <= now) {
			candidates = append(candidates, i)
		}
	}
	if len(candidates) == 0 {
		return -1
	}
	return slices.MinFunc(candidates, func(i, j int) int {
		a, b := m.slots[i], m.slots[j]
		pinA, pinB := a.until > now, b.until > now
		switch {
		case pinA != pinB && pinB:
			return -1
		case pinA != pinB:
			return 1
		case pinA:
			return cmp.Or(cmp.Compare(a.until, b.until), cmp.Compare(a.used, b.used))
		default:
			return cmp.Or(cmp.Compare(a.priority, b.priority), cmp.Compare(a.used, b.used))
		}
	})
}

func (m *model) forget(i int) {
	if m.slots[i].state == Inactive {
		m.slots[i] = modelSlot{}
		return
	}
	m.slots[i] = modelSlot{state: Leaving, refs: m.slots[i].refs}
}

var keys = map[int]block.Key{}

// key returns the key of a number, which it remembers, because a digest takes long under the race detector.
func key(n int) block.Key {
	k, ok := keys[n]
	if !ok {
		var s block.Space
		k = s.Key(binary.LittleEndian.AppendUint32(nil, uint32(n)))
		keys[n] = k
	}
	return k
}

func second(s int64) time.Time {
	if s == 0 {
		return time.Time{}
	}
	return time.Unix(s, 0)
}

// play runs operations, four bytes each, against a pool and the model, and compares them after each.
func play(t *testing.T, slots, keys int, ops []byte) {
	p := New(slots)
	m := &model{slots: make([]modelSlot, slots)}
	now := int64(1000)

	for len(ops) >= 4 {
		op, a, b, c := ops[0]%14, int(ops[1]), int(ops[2]), ops[3]
		ops = ops[4:]
		i, k := a%(slots+1), key(b%keys) // one slot does not exist
		now += int64(c % 2)
		step(t, p, m, op, i, k, c, now)
		compare(t, p, m, keys)
	}
}

func step(t *testing.T, p *Pool, m *model, op byte, i int, k block.Key, c byte, now int64) {
	t.Helper()
	permitted := func(err error, want bool) bool {
		t.Helper()
		if (err == nil) != want {
			t.Fatalf("operation %d of slot %d: %v; permitted: %v", op, i, err, want)
		}
		return want
	}
	found := m.find(k)

	switch op {
	case 0, 1: // Take is frequent, so that pools become full
		demote := c%4 == 0
		want := m.victim(now, demote)
		full := !slices.ContainsFunc(m.slots, func(s modelSlot) bool { return s.state == Reset })
		got, evicted, err := p.Take(second(now), demote)
		if !permitted(err, !full || want >= 0) {
			return
		}
		if full != evicted.Valid || full && (got != want || evicted.Key != m.slots[want].key || evicted.Priority != m.slots[want].priority) {
			t.Fatalf("Take returned slot %d with %+v, want slot %d with %+v", got, evicted, want, m.slots)
		}
		if !full && m.slots[got].state != Reset {
			t.Fatalf("Take returned slot %d, which is %v", got, m.slots[got].state)
		}
		if pinned := full && m.slots[want].until > now; pinned != !evicted.Until.IsZero() {
			t.Fatalf("the evicted block has the pin %v, want one: %v", evicted.Until, pinned)
		}
		m.slots[got] = modelSlot{state: Partial}
	case 2:
		if permitted(p.Complete(i), m.has(i, Partial)) {
			m.slots[i].state = Complete
		}
	case 3, 4:
		got, err := p.Register(i, k, c%4)
		if !permitted(err, m.has(i, Complete)) {
			return
		}
		if found >= 0 {
			m.slots[i] = modelSlot{}
			m.slots[found].state = Active
			m.slots[found].refs++
			m.slots[found].priority = max(m.slots[found].priority, c%4)
		} else {
			found = i
			m.slots[i] = modelSlot{state: Active, key: k, priority: c % 4, refs: 1}
		}
		if got != found {
			t.Fatalf("Register returned slot %d, want %d", got, found)
		}
	case 5:
		got, ok := p.Acquire(k)
		if ok != (found >= 0) || ok && got != found {
			t.Fatalf("Acquire returned %d, %v, want %d", got, ok, found)
		}
		if ok {
			m.slots[found].state = Active
			m.slots[found].refs++
		}
	case 6, 7:
		if !permitted(p.Release(i), m.has(i, Active, Leaving)) {
			return
		}
		s := &m.slots[i]
		s.refs--
		if s.refs == 0 && s.state == Active {
			m.clock++
			s.used = m.clock
			s.state = Inactive
		}
		if s.refs == 0 && s.state == Leaving {
			*s = modelSlot{}
		}
	case 8:
		if permitted(p.Drop(i), m.has(i, Partial, Complete)) {
			m.slots[i] = modelSlot{}
		}
	case 9:
		if permitted(p.Quarantine(i), m.has(i, Partial, Complete)) {
			m.slots[i].state = Quarantined
		}
	case 10:
		if permitted(p.Lift(i), m.has(i, Quarantined)) {
			m.slots[i] = modelSlot{}
		}
	case 11:
		if c%16 == 0 {
			want := 0
			for i := range m.slots {
				if m.has(i, Active, Inactive) {
					m.forget(i)
					want++
				}
			}
			if got := p.Flush(); got != want {
				t.Fatalf("Flush returned %d, want %d", got, want)
			}
			return
		}
		if e := p.Evict(k); e.Valid != (found >= 0) || e.Valid && (e.Key != k || e.Priority != m.slots[found].priority) {
			t.Fatalf("Evict returned %+v, want %d", e, found)
		}
		if found >= 0 {
			m.forget(found)
		}
	case 12:
		until := int64(0)
		if c%4 > 0 {
			until = now + int64(c%8)
		}
		if p.Pin(k, second(until)) != (found >= 0) {
			t.Fatalf("Pin disagrees about slot %d", found)
		}
		if found >= 0 {
			if until != 0 {
				until = max(until, m.slots[found].until)
			}
			m.slots[found].until = until
		}
	case 13:
		if permitted(p.Adopt(i, k, c%4, time.Time{}), m.has(i, Reset) && found < 0) {
			m.clock++
			m.slots[i] = modelSlot{state: Inactive, key: k, priority: c % 4, used: m.clock}
		}
	}
}

// compare checks that pool and model are in the same state, and that the parts of the pool fit together.
func compare(t *testing.T, p *Pool, m *model, keys int) {
	t.Helper()

	counts := map[State]int{}
	for i, want := range m.slots {
		got := p.Slot(i)
		counts[got.State]++
		if got.State != want.state || got.Key != want.key || got.References != want.refs || got.Priority != want.priority {
			t.Fatalf("slot %d is %+v, want %+v", i, got, want)
		}
	}
	for k := range keys {
		if i, ok := p.Find(key(k)); i != m.find(key(k)) || ok != (i >= 0) || ok != p.Has(key(k)) {
			t.Fatalf("key %d is found in slot %d, %v", k, i, ok)
		}
	}

	s := p.Stats()
	want := Stats{
		Reset: counts[Reset], Partial: counts[Partial], Complete: counts[Complete], Active: counts[Active], Inactive: counts[Inactive],
		Leaving: counts[Leaving], Quarantined: counts[Quarantined],
		Pinned: s.Pinned, Taken: s.Taken, Evicted: s.Evicted, Demoted: s.Demoted, Duplicates: s.Duplicates,
	}
	if s != want {
		t.Fatalf("%+v, want %+v", s, want)
	}
	if len(p.free) != counts[Reset] || len(p.unpinned.heap)+len(p.pinned.heap) != counts[Inactive] {
		t.Fatalf("%d free, %d unpinned and %d pinned slots: %v", len(p.free), len(p.unpinned.heap), len(p.pinned.heap), counts)
	}
	for _, list := range [][]int32{p.free, p.unpinned.heap, p.pinned.heap} {
		for at, i := range list {
			if p.slots[i].at != int32(at) {
				t.Fatalf("slot %d is at %d and has position %d", i, at, p.slots[i].at)
			}
		}
	}
}

func TestAgainstModel(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		ops := make([]byte, 4*1000)
		for i := range ops {
			ops[i] = byte(rng.Uint32())
		}
		play(t, 1+rng.IntN(12), 1+rng.IntN(16), ops)
	}
}

func FuzzOperations(f *testing.F) {
	f.Add(uint8(2), uint8(3), []byte{0, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, slots, keys uint8, ops []byte) {
		play(t, 1+int(slots%16), 1+int(keys%24), ops[:min(len(ops), 4000)])
	})
}
