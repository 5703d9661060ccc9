package chattemplate

import (
	"strings"
)

// filter is the implementation of a Jinja filter: v is the value before "|".
type filter func(r *run, v Value, args *arguments) Value

// filters holds the filters by name. An init function fills it, because map and select look filters up in it,
// which would be an initialization cycle.
var filters map[string]filter

func init() {
	filters = map[string]filter{
		"tojson": tojson, "default": defaultFilter, "d": defaultFilter,
		"trim":   func(r *run, v Value, a *arguments) Value { return r.strip(text(v), a, true, true) },
		"length": lengthFilter, "count": lengthFilter,
		"string":     func(r *run, v Value, _ *arguments) Value { return r.toString(v) },
		"lower":      textFilter(lower),
		"upper":      textFilter(upper),
		"capitalize": textFilter(capitalize),
		"title":      textFilter(titleFilter),
		"safe":       func(r *run, v Value, _ *arguments) Value { return markupValue(text(v)) },
		"escape":     escapeFilter, "e": escapeFilter,
		"forceescape": func(r *run, v Value, _ *arguments) Value { return markupValue(htmlEscape(text(v))) },
		"replace":     replaceFilter, "format": formatFilter, "join": joinFilter, "list": listFilter, "items": itemsFilter,
		"first": firstFilter, "last": lastFilter, "reverse": reverseFilter, "map": mapFilter,
		"select": selectFilter(true, false), "reject": selectFilter(false, false),
		"selectattr": selectFilter(true, true), "rejectattr": selectFilter(false, true),
		"sort": sortFilter, "dictsort": dictSort, "unique": unique, "sum": sumFilter,
		"min": extremeFilter(-1), "max": extremeFilter(1),
		"int": intFilter, "float": floatFilter, "round": roundFilter, "abs": absFilter,
		"indent": indent, "attr": attrFilter, "truncate": truncateFilter,
	}
}

// textFilter returns a filter that applies change to str(v).
func textFilter(change func(string) string) filter {
	return func(r *run, v Value, _ *arguments) Value { return r.newString(change(text(v))) }
}

// toString evaluates Python's str(v), which is Jinja's filter string.
func (r *run) toString(v Value) Value {
	if v.kind == String {
		return v
	}
	return r.newString(text(v))
}

// markupValue returns s as a markupsafe Markup, a string that is not escaped again.
func markupValue(s string) Value { return Value{kind: String, str: s, markup: true} }

// htmlEscapes replaces the characters that markupsafe.escape replaces.
var htmlEscapes = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", "'", "&#39;", `"`, "&#34;")

// htmlEscape imitates markupsafe.escape for a str.
func htmlEscape(s string) string { return htmlEscapes.Replace(s) }

// escapeFilter imitates Jinja's filter escape. Markup stays as it is.
func escapeFilter(r *run, v Value, _ *arguments) Value {
	if v.markup {
		return v
	}
	return markupValue(htmlEscape(text(v)))
}

// titleFilter imitates Jinja's filter title. Unlike str.title it starts a word only after white space or one
// of the characters -([{<.
func titleFilter(s string) string {
	var b strings.Builder
	start := true
	for _, c := range s {
		switch {
		case strings.ContainsRune("-([{<", c) || isSpace(c):
			b.WriteRune(c)
			start = true
			continue
		case start:
			b.WriteString(upper(string(c)))
		default:
			b.WriteString(lower(string(c)))
		}
		start = false
	}

	return b.String()
}

// tojson imitates Hugging Face's filter tojson(ensure_ascii, indent, separators, sort_keys). Unlike Jinja's
// it escapes no HTML, and ensure_ascii is off by default.
func tojson(r *run, v Value, a *arguments) Value {
	style := plainStyle
	style.ascii = a.argument(0, "ensure_ascii", falseValue).truth()
	style.sortKeys = a.argument(3, "sort_keys", falseValue).truth()

	switch in := a.argument(1, "indent", none); {
	case in.isSmallInt(): // with an indent, json.dumps writes no space after a comma
		style.lines, style.item = true, ","
		style.indent = strings.Repeat(" ", int(max(0, min(64, in.int()))))
	case in.kind == String:
		style.lines = true
		style.item = ","
		style.indent = in.str
	}

	if sep := a.argument(2, "separators", none); sep.kind == ListKind {
		if l := sep.list(); len(l.Items) == 2 {
			style.item, style.colon = text(l.Items[0]), text(l.Items[1])
		}
	}

	b, err := appendJSON(nil, v, &style, 0)
	if err != nil {
		return r.failf("%v", err)
	}

	r.chargeString(len(b))
	return stringOf(b)
}

// defaultFilter imitates Jinja's filter default(default_value, boolean).
func defaultFilter(_ *run, v Value, a *arguments) Value {
	if v.kind == Undefined || a.argument(1, "boolean", falseValue).truth() && !v.truth() {
		return a.argument(0, "default_value", StringValue(""))
	}
	return v
}

// lengthFilter imitates Jinja's filter length.
func lengthFilter(r *run, v Value, _ *arguments) Value {
	n, _ := r.pyLen(v)
	return IntValue(n)
}

// replaceFilter imitates Jinja's filter replace(old, new, count).
func replaceFilter(r *run, v Value, a *arguments) Value {
	count := -1
	if c := a.argument(2, "count", none); c.kind != None {
		count = r.intArg(a, 2, "count", -1)
	}
	return r.replaceSubstring(text(v), text(a.argument(0, "old", undefined)), text(a.argument(1, "new", undefined)), count)
}

// formatFilter imitates Jinja's filter format, which formats by Python's % operator.
func formatFilter(r *run, v Value, a *arguments) Value {
	if len(a.names) > 0 {
		d := &Dict{}
		for i, n := range a.names {
			d.Set(n, a.named[i])
		}
		return r.percent(text(v), DictValue(d))
	}
	return r.percent(text(v), tuple(a.positional...))
}

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

// filter compiles of | name(args). An unknown filter is an error of the template. Inside an if it is an error
// only when a render reaches it, as in Jinja.
func (c *compiler) filter(e filterExpr, of eval) eval {
	args := c.args(e.args)
	f, ok := filters[e.name]
	if !ok {
		if !c.insideIf {
			c.fail(e.line, "No filter named '"+e.name+"'.")
		}
		return func(r *run, _ *frame) Value { return r.failf("No filter named '%s'.", e.name) }
	}

	if len(e.args.positional)+len(e.args.names) == 0 && e.args.star == nil && e.args.dict == nil {
		return func(r *run, fr *frame) Value {
			v := of(r, fr)
			if r.err != nil || !r.chargeRead(v) {
				return undefined
			}
			return f(r, v, &noArguments)
		}
	}

	return func(r *run, fr *frame) Value {
		v, given := of(r, fr), args(r, fr)
		if r.err != nil || !r.chargeRead(v) {
			return undefined
		}
		return f(r, v, given)
	}
}

// noArguments is passed to filters without arguments, which saves an allocation. It is shared by all renders,
// so that nothing may write to it.
var noArguments arguments

// filterChain compiles the filters of a block. The closure applies them in turn to a value.
func (c *compiler) filterChain(chain []filterExpr) func(*run, *frame, Value) Value {
	steps := make([]eval, len(chain))
	for i, f := range chain {
		steps[i] = c.filter(f, func(r *run, _ *frame) Value { return r.filterInput })
	}
	return func(r *run, f *frame, v Value) Value {
		for _, step := range steps {
			r.filterInput = v
			v = step(r, f)
		}
		return v
	}
}
