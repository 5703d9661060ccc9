package chattemplate

import "strings"

// joinFilter imitates Jinja's filter join(d, attribute), where d is the separator.
func joinFilter(r *run, v Value, a *arguments) Value {
	items, ok := r.iterate(v)
	if !ok {
		return undefined
	}

	sep := text(a.argument(0, "d", StringValue("")))
	attr := a.argument(1, "attribute", none)
	var b []byte
	for i, item := range items {
		if i > 0 {
			b = append(b, sep...)
		}
		if attr.kind != None {
			item = r.lookUpPath(item, attr, none)
		}
		if item.kind != String && !r.chargeRead(item) {
			return undefined
		}
		b = appendStr(b, item)
		if len(b) > r.lim.Output || !r.charge(1+len(sep)/16) {
			return r.failf("template makes a string of more than %d bytes", r.lim.Output)
		}
	}

	r.chargeString(len(b))
	return stringOf(b)
}

// listFilter imitates Jinja's filter list, which copies.
func listFilter(r *run, v Value, _ *arguments) Value {
	items, ok := r.iterate(v)
	if !ok || !r.chargeItems(len(items)) {
		return undefined
	}
	return ListValue(append([]Value{}, items...))
}

// itemsFilter imitates Jinja's filter items. An undefined value has no items.
func itemsFilter(r *run, v Value, _ *arguments) Value {
	switch v.kind {
	case Undefined:
		return sequenceOf(generatorSeq, nil)
	case DictKind:
		return sequenceOf(generatorSeq, v.dict().items())
	}
	return r.failf("Can only get item pairs from a mapping.")
}

// firstFilter imitates Jinja's filter first. It reads one element of a generator and leaves the rest.
func firstFilter(r *run, v Value, _ *arguments) Value {
	if l := v.list(); l != nil && l.seq == generatorSeq { // iterate would use up the whole generator
		if l.nextUnread == len(l.Items) {
			return undefinedValue("No first item, sequence was empty: first")
		}
		l.nextUnread++
		return l.Items[l.nextUnread-1]
	}

	items, ok := r.iterate(v)
	if !ok || len(items) == 0 {
		return undefinedValue("No first item, sequence was empty: first")
	}
	return items[0]
}

// lastFilter imitates Jinja's filter last. Python cannot reverse a generator, so that a generator is an
// error.
func lastFilter(r *run, v Value, _ *arguments) Value {
	if l := v.list(); l != nil && l.seq == generatorSeq {
		return r.failf("'generator' object is not reversible")
	}
	items, ok := r.iterate(v)
	if !ok || len(items) == 0 {
		return undefinedValue("No last item, sequence was empty: last")
	}
	return items[len(items)-1]
}

// reverseFilter imitates Jinja's filter reverse.
func reverseFilter(r *run, v Value, _ *arguments) Value {
	if v.kind == String {
		return r.slice(v, [3]Value{none, none, IntValue(-1)})
	}
	items, ok := r.iterate(v)
	if !ok || !r.charge(len(items)) {
		return undefined
	}

	out := append([]Value{}, items...)
	reverseSlice(out)
	return sequenceOf(generatorSeq, out)
}

// lookUpPath evaluates the attribute argument of a filter, as Jinja's make_attrgetter does. attr is an index
// or a path such as "a.b.0". If a step is undefined the result is absent, unless absent is none.
func (r *run) lookUpPath(v, attr, absent Value) Value {
	if attr.isSmallInt() {
		return r.item(v, attr)
	}
	for _, part := range strings.Split(text(attr), ".") {
		if n, ok := parseIndex(part); ok {
			v = r.item(v, IntValue(n))
		} else {
			v = r.item(v, StringValue(part))
		}
		if v.kind == Undefined && absent.kind != None {
			return absent
		}
	}

	return v
}

// parseIndex reads a decimal index of up to nine digits. It returns false for any other text.
func parseIndex(s string) (n int, ok bool) {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' || i > 8 {
			return 0, false
		}
		n = n*10 + int(s[i]-'0')
	}
	return n, s != ""
}

// mapFilter imitates Jinja's filter map. It applies a named filter, or reads an attribute of each item.
func mapFilter(r *run, v Value, a *arguments) Value {
	if !v.truth() { // Jinja maps no false value, not even none, which cannot be iterated
		return sequenceOf(generatorSeq, nil)
	}
	items, ok := r.iterate(v)
	if !ok || !r.charge(len(items)) {
		return undefined
	}

	out := make([]Value, len(items))
	if attr, ok := a.keyword("attribute"); ok && len(a.positional) == 0 {
		absent, given := a.keyword("default")
		if !given {
			absent = none
		}
		for i, item := range items {
			out[i] = r.lookUpPath(item, attr, absent)
		}
		return sequenceOf(generatorSeq, out)
	}

	if len(a.positional) == 0 {
		return r.failf("map requires a filter argument")
	}

	f, known := filters[text(a.positional[0])]
	if !known {
		return r.failf("No filter named '%s'.", text(a.positional[0]))
	}

	rest := &arguments{positional: a.positional[1:], names: a.names, named: a.named}
	for i, item := range items {
		if !r.chargeRead(item) {
			return undefined
		}
		out[i] = f(r, item, rest)
	}
	if r.err != nil {
		return undefined
	}
	return sequenceOf(generatorSeq, out)
}

// selectFilter returns Jinja's filter select if want is true, and reject if it is false. With byAttr it tests
// an attribute of each item, as selectattr and rejectattr do.
func selectFilter(want, byAttr bool) filter {
	return func(r *run, v Value, a *arguments) Value {
		if !v.truth() {
			return sequenceOf(generatorSeq, nil)
		}
		items, ok := r.iterate(v)
		if !ok || !r.charge(len(items)) {
			return undefined
		}
		args := *a
		attr := none
		if byAttr {
			if len(args.positional) == 0 {
				return r.failf("Missing parameter for attribute name")
			}
			attr, args.positional = args.positional[0], args.positional[1:]
		}
		test := func(_ *run, v Value, _ *arguments) bool { return v.truth() }
		if len(args.positional) > 0 {
			name := text(args.positional[0])
			test, ok = testers[name]
			if !ok {
				return r.failf("No test named '%s'.", name)
			}
			args.positional = args.positional[1:]
		}
		var out []Value
		for _, item := range items {
			tested := item
			if byAttr {
				tested = r.lookUpPath(item, attr, none)
			}
			if !r.chargeRead(tested) {
				return undefined
			}
			if test(r, tested, &args) == want {
				out = append(out, item)
			}
			if r.err != nil {
				return undefined
			}
		}
		return sequenceOf(generatorSeq, out)
	}
}
