package chattemplate

import "unsafe"

// Dict is a dict: it keeps the order in which keys were first set. The zero value is empty.
type Dict struct {
	keys, values []Value
	// byName maps a string key to its position. It is nil up to fewKeys keys, because a linear search
	// is faster there. Keys of other types are always searched for.
	byName map[string]int
}

// fewKeys is the number of keys from which a dict has an index.
const fewKeys = 8

// NewDict returns an empty dict with room for n keys.
func NewDict(n int) *Dict {
	return &Dict{keys: make([]Value, 0, n), values: make([]Value, 0, n)}
}

// Len is the number of keys.
func (d *Dict) Len() int { return len(d.keys) }

// Reset empties the dict and keeps its memory.
func (d *Dict) Reset() {
	clear(d.keys)
	clear(d.values)
	d.keys = d.keys[:0]
	d.values = d.values[:0]
	d.byName = nil
}

// Size returns the bytes of the dict itself and of its tables, but not of the values that it refers to.
func (d *Dict) Size() int {
	return int(unsafe.Sizeof(*d)) + (cap(d.keys)+cap(d.values))*int(unsafe.Sizeof(Value{}))
}

// Each calls visit for each string key and its value, in order.
func (d *Dict) Each(visit func(key string, v Value)) {
	for i, k := range d.keys {
		if k.kind == String {
			visit(k.str, d.values[i])
		}
	}
}

// Set sets the value of a string key.
func (d *Dict) Set(key string, v Value) { d.set(StringValue(key), v) }

// Get is the value of a string key.
func (d *Dict) Get(key string) (Value, bool) {
	if i := d.indexOfName(key); i >= 0 {
		return d.values[i], true
	}
	return undefined, false
}

// indexOfName returns the position of a string key, or -1.
func (d *Dict) indexOfName(key string) int {
	if d.byName != nil {
		if i, ok := d.byName[key]; ok {
			return i
		}
		return -1
	}

	for i := range d.keys {
		if k := &d.keys[i]; k.kind == String && k.str == key {
			return i
		}
	}
	return -1
}

// indexOf returns the position of a key of any type, or -1. Python's equality applies: 1, 1.0 and True are
// the same key.
func (d *Dict) indexOf(key Value) int {
	if key.kind == String {
		return d.indexOfName(key.str)
	}
	for i := range d.keys {
		if d.keys[i].kind != String && equal(d.keys[i], key) {
			return i
		}
	}
	return -1
}

// get returns the value of a key of any type.
func (d *Dict) get(key Value) (Value, bool) {
	if i := d.indexOf(key); i >= 0 {
		return d.values[i], true
	}
	return undefined, false
}

// set sets the value of a key of any type. A new key goes to the end.
func (d *Dict) set(key, v Value) {
	if i := d.indexOf(key); i >= 0 {
		d.values[i] = v
		return
	}

	// The index is built when the dict outgrows fewKeys, and kept up to date from then on.
	if key.kind == String && (d.byName != nil || len(d.keys) >= fewKeys) {
		if d.byName == nil {
			d.byName = make(map[string]int, 2*fewKeys)
			for i, k := range d.keys {
				if k.kind == String {
					d.byName[k.str] = i
				}
			}
		}
		d.byName[key.str] = len(d.keys)
	}

	d.keys, d.values = append(d.keys, key), append(d.values, v)
}

// items returns the (key, value) tuples, in order. All tuples share one allocation.
func (d *Dict) items() []Value {
	items := make([]Value, len(d.keys))
	pairs := make([]Value, 2*len(d.keys))
	for i := range items {
		pair := pairs[2*i : 2*i+2 : 2*i+2]
		pair[0], pair[1] = d.keys[i], d.values[i]
		items[i] = tuple(pair...)
	}
	return items
}

// hashable reports whether Python can use v as a key of a dict.
func hashable(v Value) bool {
	left := maxCompared
	return hashableWithin(v, &left)
}

// hashableWithin does what hashable does. It deducts the values that it visits from *left. A value with more is not
// hashable.
func hashableWithin(v Value, left *int) bool {
	*left--
	if *left < 0 {
		return false
	}
	switch v.kind {
	case ListKind:
		l := v.list()
		if l.seq != tupleSeq {
			return l.seq == rangeSeq || l.seq == generatorSeq
		}
		for _, item := range l.Items {
			if !hashableWithin(item, left) {
				return false
			}
		}
		return true
	case DictKind:
		return false
	}
	return true
}
