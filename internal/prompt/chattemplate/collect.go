package chattemplate

import (
	"slices"
	"strings"
)

// sortKey returns the value by which filters compare v. Strings are compared in lower case unless the
// template asks for case_sensitive.
func sortKey(v Value, caseSensitive bool) Value {
	if v.kind == String && !caseSensitive {
		return StringValue(lower(v.str))
	}
	return v
}

// sortByKeys returns items in the order of their keys. The sort is stable. It fails if Python cannot compare
// two of the keys.
func (r *run) sortByKeys(items, keys []Value, descending bool) []Value {
	if !r.charge(len(items) * 4) {
		return nil
	}

	at := make([]int, len(items))
	for i := range at {
		at[i] = i
	}

	slices.SortStableFunc(at, func(i, j int) int {
		if descending {
			i, j = j, i
		}
		c, ok := compareOrder(keys[i], keys[j])
		if !ok {
			r.failf("'<' not supported between instances of '%s' and '%s'", keys[i].typeName(), keys[j].typeName())
		}
		return c % 2 // 2 stands for NaN, which counts as equal here
	})

	out := make([]Value, len(items))
	for i, k := range at {
		out[i] = items[k]
	}
	return out
}

// sortKeys returns the sort key of each item. If attr is given it holds attribute paths, separated by commas,
// and the key is a tuple of their values.
func (r *run) sortKeys(items []Value, attr Value, caseSensitive bool) []Value {
	keys := make([]Value, len(items))
	for i, item := range items {
		if attr.kind == None {
			keys[i] = sortKey(item, caseSensitive)
			continue
		}
		var parts []Value
		for _, name := range strings.Split(text(attr), ",") {
			parts = append(parts, sortKey(r.lookUpPath(item, StringValue(name), none), caseSensitive))
		}
		keys[i] = tuple(parts...)
	}

	return keys
}

// sortFilter imitates Jinja's filter sort(reverse, case_sensitive, attribute).
func sortFilter(r *run, v Value, a *arguments) Value {
	items, ok := r.iterate(v)
	if !ok {
		return undefined
	}
	keys := r.sortKeys(items, a.argument(2, "attribute", none), a.argument(1, "case_sensitive", falseValue).truth())
	return ListValue(r.sortByKeys(items, keys, a.argument(0, "reverse", falseValue).truth()))
}

// dictSort imitates Jinja's filter dictsort(case_sensitive, by, reverse).
func dictSort(r *run, v Value, a *arguments) Value {
	if v.kind != DictKind {
		return r.failf("'%s' object has no attribute 'items'", v.typeName())
	}
	d := v.dict()
	by := d.keys
	switch name := text(a.argument(1, "by", StringValue("key"))); name {
	case "key":
	case "value":
		by = d.values
	default:
		return r.failf("You can only sort by either \"key\" or \"value\"")
	}

	keys := r.sortKeys(by, none, a.argument(0, "case_sensitive", falseValue).truth())
	return ListValue(r.sortByKeys(d.items(), keys, a.argument(2, "reverse", falseValue).truth()))
}

// jsonOrder returns the positions of the keys in the order in which json.dumps writes them. Without sort_keys
// it returns nil, which means the order of the dict.
func (d *Dict) jsonOrder(sorted bool) ([]int, error) {
	if !sorted {
		return nil, nil
	}

	r := &run{steps: 1 << 30} // enough steps for any dict that fits into memory
	at := make([]Value, len(d.keys))
	for i := range at {
		at[i] = IntValue(i)
	}

	out := make([]int, len(at))
	for i, v := range r.sortByKeys(at, d.keys, false) {
		out[i] = int(v.int())
	}
	return out, r.err
}

// unique imitates Jinja's filter unique(case_sensitive, attribute): it keeps the first item of each key.
func unique(r *run, v Value, a *arguments) Value {
	items, ok := r.iterate(v)
	if !ok {
		return undefined
	}

	attr := a.argument(1, "attribute", none)
	seen := &Dict{}
	var out []Value
	for i, key := range r.sortKeys(items, attr, a.argument(0, "case_sensitive", falseValue).truth()) {
		if !hashable(key) {
			return r.failf("unhashable type: '%s'", key.typeName())
		}

		// Keys that are no strings are found by linear search, whose cost grows with the keys seen.
		if !r.charge(1 + seen.Len()/8) {
			return undefined
		}
		if seen.indexOf(key) < 0 {
			seen.set(key, none)
			out = append(out, items[i])
		}
	}

	return sequenceOf(generatorSeq, out)
}

// sumFilter imitates Jinja's filter sum(attribute, start).
func sumFilter(r *run, v Value, a *arguments) Value {
	items, ok := r.iterate(v)
	if !ok {
		return undefined
	}

	sum := a.argument(1, "start", IntValue(0))
	for _, item := range items {
		if attr := a.argument(0, "attribute", none); attr.kind != None {
			item = r.lookUpPath(item, attr, none)
		}
		sum = r.arith("+", sum, item)
		if !r.charge(1) {
			return undefined
		}
	}

	return sum
}

// extremeFilter returns Jinja's filter min for sign -1, and max for sign 1. Of equal items it returns the
// first.
func extremeFilter(sign int) filter {
	return func(r *run, v Value, a *arguments) Value {
		items, ok := r.iterate(v)
		if !ok || len(items) == 0 {
			return undefinedValue("No aggregated item, sequence was empty: it")
		}
		keys := r.sortKeys(items, a.argument(1, "attribute", none), a.argument(0, "case_sensitive", falseValue).truth())
		best := 0
		for i := range items {
			c, ok := compareOrder(keys[i], keys[best])
			if !ok {
				return r.failf("'<' not supported between instances of '%s' and '%s'", keys[i].typeName(), keys[best].typeName())
			}
			if c == sign {
				best = i
			}
		}
		return items[best]
	}
}

// attrFilter imitates Jinja's filter attr(name). Unlike v.name it returns an attribute only, and never an
// item.
func attrFilter(r *run, v Value, a *arguments) Value {
	name := r.stringArg(a, 0, "name")
	if v.kind == DictKind {
		if m, ok := dictMethods[name]; ok {
			return bindDict(m, name, v.dict())
		}
		return undefinedValue(name)
	}
	return r.attr(v, name)
}
