package chattemplate

import (
	"math"
	"strings"
	"unicode/utf8"
)

// attr evaluates v.name as Jinja's Environment.getattr does: the attribute, else the item of that name, else
// undefined.
func (r *run) attr(v Value, name string) Value {
	switch v.kind {
	case Undefined:
		return r.failUndefined(v)
	case String:
		if m, ok := stringMethods[name]; ok {
			return function(name, func(r *run, args *arguments) Value {
				r.chargeRead(v)
				return m(r, v.str, args)
			})
		}
	case ListKind:
		if m, ok := v.list().method(name); ok {
			return m
		}
	case DictKind:
		if m, ok := dictMethods[name]; ok {
			return bindDict(m, name, v.dict())
		}
		if item, ok := v.dict().Get(name); ok {
			return item
		}
	case object:
		switch o := v.ref.(type) {
		case *loop:
			if a, ok := o.attr(name); ok {
				return a
			}
		case *namespace:
			if a, ok := o.attrs.Get(name); ok {
				return a
			}
		}
	}
	return undefinedValue(name)
}

// item evaluates v[index] as Jinja's Environment.getitem does: the item, else the attribute of that name,
// else undefined.
func (r *run) item(v, index Value) Value {
	switch v.kind {
	case Undefined:
		return r.failUndefined(v)
	case DictKind:
		if !hashable(index) {
			return undefinedValue("item")
		}
		if item, ok := v.dict().get(index); ok {
			return item
		}
	case ListKind:
		l := v.list()
		if i, ok := resolveIndex(index, len(l.Items)); ok && (l.seq == listSeq || l.seq == tupleSeq || l.seq == rangeSeq) {
			return l.Items[i]
		}
	case String:
		if index.isSmallInt() {
			r.chargeRead(v)
			return charAt(v.str, index)
		}
	}

	if index.kind == String {
		return r.attr(v, index.str)
	}
	return undefinedValue(text(index))
}

// resolveIndex converts a Python index into a position in a sequence of n elements. A negative index counts
// from the end. It returns false if index is no integer or lies outside the sequence.
func resolveIndex(index Value, n int) (int, bool) {
	if !index.isSmallInt() {
		return 0, false
	}
	i := index.int()
	if i < 0 {
		i += int64(n)
	}
	return int(i), i >= 0 && i < int64(n)
}

// charAt returns the code point of s at a Python index, or undefined if the index is out of range.
func charAt(s string, index Value) Value {
	i, ok := resolveIndex(index, runeCount(s))
	if !ok {
		return undefinedValue(text(index))
	}
	if isASCII(s) {
		return StringValue(s[i : i+1])
	}

	for at := range s {
		if i == 0 {
			_, n := utf8.DecodeRuneInString(s[at:])
			return StringValue(s[at : at+n])
		}
		i--
	}
	return undefined
}

// slice evaluates v[start:stop:step]. A bound that the template leaves out is none.
func (r *run) slice(v Value, at [3]Value) Value {
	n := 0
	switch {
	case v.kind == String:
		r.chargeRead(v)
		n = runeCount(v.str)
	case v.kind == ListKind && v.list().seq <= rangeSeq:
		n = len(v.list().Items)
	case v.kind == Undefined:
		return r.failUndefined(v)
	default:
		return undefinedValue("slice")
	}

	start, stop, step, ok := r.sliceBounds(at, n)
	if !ok {
		return undefined
	}
	if v.kind == String {
		return r.substring(v.str, start, stop, step)
	}

	l := v.list()
	if step == 1 {
		if stop < start {
			stop = start
		}
		return sequenceOf(l.seq, l.Items[start:stop:stop])
	}

	var items []Value
	for i := start; step > 0 && i < stop || step < 0 && i > stop; i += step {
		items = append(items, l.Items[i])
	}
	r.charge(len(items))
	return sequenceOf(l.seq, items)
}

// sliceBounds resolves slice bounds for n elements, as Python's slice.indices does. With a negative step,
// stop may be -1. It fails and returns false if a bound is no integer or the step is zero.
func (r *run) sliceBounds(at [3]Value, n int) (start, stop, step int, ok bool) {
	var given [3]int
	for i, v := range at {
		switch {
		case v.kind == None:
		case v.isBig(): // far beyond any sequence, so that only the sign matters
			given[i] = math.MaxInt32 * v.big().Sign()
		case v.isSmallInt():
			given[i] = int(max(math.MinInt32, min(math.MaxInt32, v.int())))
		default:
			r.failf("slice indices must be integers or None or have an __index__ method")
			return 0, 0, 0, false
		}
	}

	step = 1
	if at[2].kind != None {
		step = given[2]
		if step == 0 {
			r.failf("slice step cannot be zero")
			return 0, 0, 0, false
		}
	}

	// A backward slice may end before the first element, at -1, and starts at the last one at most.
	low, high := 0, n
	if step < 0 {
		low, high = -1, n-1
	}

	clamp := func(i int) int {
		if i < 0 {
			i += n
		}
		return max(low, min(high, i))
	}

	start, stop = low, high
	if step < 0 {
		start, stop = high, low
	}
	if at[0].kind != None {
		start = clamp(given[0])
	}
	if at[1].kind != None {
		stop = clamp(given[1])
	}
	return start, stop, step, true
}

// substring returns the code points of s from start to stop. The bounds come from sliceBounds, so they lie
// within s.
func (r *run) substring(s string, start, stop, step int) Value {
	if step == 1 {
		if start >= stop {
			return StringValue("")
		}
		if isASCII(s) {
			return StringValue(s[start:stop])
		}
		return StringValue(s[byteOffset(s, start):byteOffset(s, stop)])
	}

	runes := []rune(s)
	if !r.chargeString(len(s)) {
		return undefined
	}

	var b strings.Builder
	for i := start; step > 0 && i < stop || step < 0 && i > stop; i += step {
		b.WriteRune(runes[i])
	}
	return StringValue(b.String())
}

// byteOffset returns the byte offset of the n-th code point of s, or len(s) if s has fewer.
func byteOffset(s string, n int) int {
	for at := range s {
		if n == 0 {
			return at
		}
		n--
	}
	return len(s)
}

// iterate returns the elements of v in order, as Python's iter does. Iterating over a generator uses it up.
// The caller must not change the slice, because it may belong to v. It fails and returns false if v cannot be
// iterated.
func (r *run) iterate(v Value) ([]Value, bool) {
	switch v.kind {
	case ListKind:
		l := v.list()
		items := l.Items[l.nextUnread:]
		if l.seq == generatorSeq { // a generator can be read once
			l.nextUnread = len(l.Items)
		}
		return items, true
	case DictKind:
		return v.dict().keys, true
	case String:
		if !r.charge(len(v.str)) {
			return nil, false
		}
		items := make([]Value, 0, len(v.str))
		for rest := v.str; rest != ""; {
			_, n := utf8.DecodeRuneInString(rest)
			items, rest = append(items, StringValue(rest[:n])), rest[n:]
		}
		return items, true
	case Undefined:
		return nil, true
	}

	r.failf("'%s' object is not iterable", v.typeName())
	return nil, false
}

// pyLen returns Python's len(v). It fails and returns false if v has no length.
func (r *run) pyLen(v Value) (int, bool) {
	switch v.kind {
	case String:
		r.chargeRead(v)
		return runeCount(v.str), true
	case DictKind:
		return v.dict().Len(), true
	case ListKind:
		if l := v.list(); l.seq != generatorSeq {
			return len(l.Items), true
		}
	case Undefined:
		return 0, true
	case object:
		if l, ok := v.ref.(*loop); ok {
			return len(l.items), true
		}
	}

	r.failf("object of type '%s' has no len()", v.typeName())
	return 0, false
}
