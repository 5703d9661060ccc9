package chattemplate

import "strings"

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
