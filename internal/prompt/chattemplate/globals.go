package chattemplate

// globals holds the names that every template can read. The context may hide them.
var globals map[string]Value

// maxRange is the largest length that Jinja's sandbox allows for range().
const maxRange = 100_000

// unsupported lists the functions of Jinja that no known chat template uses. A template that does is refused when it is loaded.
var unsupported = []string{"cycler", "joiner"}

func init() {
	globals = map[string]Value{
		"range":           function("range", rangeGlobal),
		"dict":            function("dict", dictGlobal),
		"namespace":       function("namespace", namespaceGlobal),
		"raise_exception": function("raise_exception", raiseException),
		"strftime_now": function("strftime_now", func(r *run, a *arguments) Value {
			return r.newString(strftime(r.now, r.stringArg(a, 0, "format")))
		}),
	}
}

// isHuggingFace reports whether a global is one that Hugging Face adds for chat templates.
func isHuggingFace(name string) bool { return name == "raise_exception" || name == "strftime_now" }

// raiseException imitates Hugging Face's raise_exception(message).
func raiseException(r *run, a *arguments) Value {
	return r.failf("%s", text(a.argument(0, "message", undefined)))
}

// rangeGlobal imitates range(stop), range(start, stop) and range(start, stop, step). The elements are made at
// once, and their number is bounded by maxRange.
func rangeGlobal(r *run, a *arguments) Value {
	start := 0
	stop := 0
	step := 1
	switch len(a.positional) {
	case 1:
		stop = r.intArg(a, 0, "stop", 0)
	case 3:
		step = r.intArg(a, 2, "step", 1)
		fallthrough
	case 2:
		start, stop = r.intArg(a, 0, "start", 0), r.intArg(a, 1, "stop", 0)
	default:
		return r.failf("range expected 1 to 3 arguments, got %d", len(a.positional))
	}

	if step == 0 {
		return r.failf("range() arg 3 must not be zero")
	}

	n := 0
	if step > 0 && stop > start {
		n = (stop - start + step - 1) / step
	} else if step < 0 && stop < start {
		n = (start - stop - step - 1) / -step
	}

	if n > maxRange {
		return r.failf("range too big; the sandbox blocks ranges larger than %d", maxRange)
	}
	if !r.charge(n) {
		return undefined
	}

	items := make([]Value, n)
	for i := range items {
		items[i] = IntValue(start + i*step)
	}
	return sequenceOf(rangeSeq, items)
}

// fillDict fills d from the arguments of dict() or namespace(): a mapping or an iterable of pairs, then
// keywords.
func (r *run) fillDict(d *Dict, a *arguments) {
	if len(a.positional) > 0 {
		from := a.positional[0]
		if from.kind == DictKind {
			for i, k := range from.dict().keys {
				d.set(k, from.dict().values[i])
			}
		} else if items, ok := r.iterate(from); ok {
			for _, item := range items {
				pair, ok := r.iterate(item)
				if !ok || len(pair) != 2 || !hashable(pair[0]) {
					r.failf("dictionary update sequence needs pairs")
					return
				}
				d.set(pair[0], pair[1])
			}
		}
		r.charge(d.Len())
	}
	for i, n := range a.names {
		d.Set(n, a.named[i])
	}
}

// dictGlobal imitates Python's dict().
func dictGlobal(r *run, a *arguments) Value {
	d := &Dict{}
	r.fillDict(d, a)
	return DictValue(d)
}

// namespaceGlobal imitates Jinja's namespace().
func namespaceGlobal(r *run, a *arguments) Value {
	ns := &namespace{}
	r.fillDict(&ns.attrs, a)
	return Value{kind: object, ref: ns}
}
