package chattemplate

// exprs compiles a list of expressions.
func (c *compiler) exprs(list []expression) []eval {
	out := make([]eval, len(list))
	for i, e := range list {
		out[i] = c.expr(e)
	}
	return out
}

// expr compiles an expression.
func (c *compiler) expr(e expression) eval {
	switch e := e.(type) {
	case constant:
		return func(*run, *frame) Value { return e.value }
	case name:
		return c.load(e.id)
	case attribute:
		return c.attribute(e)
	case subscript:
		of, index := c.expr(e.of), c.expr(e.index)
		return func(r *run, f *frame) Value { return r.item(of(r, f), index(r, f)) }
	case slice:
		return c.slice(e)
	case listLit:
		items := c.exprs(e.items)
		return func(r *run, f *frame) Value {
			values, _ := r.evalAll(f, items, make([]Value, 0, len(items)))
			return ListValue(values)
		}
	case tupleLit:
		items := c.exprs(e.items)
		return func(r *run, f *frame) Value {
			values, _ := r.evalAll(f, items, make([]Value, 0, len(items)))
			return tuple(values...)
		}
	case dictLit:
		return c.dict(e)
	case unary:
		return c.unary(e)
	case binary:
		return c.binary(e)
	case concat:
		parts := c.exprs(e.parts)
		return func(r *run, f *frame) Value {
			var buf [8]Value
			values, _ := r.evalAll(f, parts, buf[:0])
			return r.concat(values)
		}
	case compare:
		return c.comparison(e)
	case conditional:
		return c.conditional(e)
	case filterExpr:
		return c.filter(e, c.expr(e.of))
	case testExpr:
		return c.test(e)
	case call:
		return c.callExpr(e)
	}
	return func(*run, *frame) Value { return undefined }
}

// evalAll appends the values of list to dst. plain reports whether all values are strings without markup,
// which can be joined without Python's rules for +.
func (r *run) evalAll(f *frame, list []eval, dst []Value) (values []Value, plain bool) {
	plain = true
	for _, e := range list {
		v := e(r, f)
		plain = plain && v.kind == String && !v.markup
		dst = append(dst, v)
	}
	return dst, plain && r.err == nil
}

// attribute compiles v.name.
func (c *compiler) attribute(e attribute) eval {
	of := c.expr(e.of)
	if _, method := dictMethods[e.name]; method {
		return func(r *run, f *frame) Value { return r.attr(of(r, f), e.name) }
	}

	// Python's dict has no method of this name. An access to a dict is then a single look-up of the key.
	return func(r *run, f *frame) Value {
		v := of(r, f)
		if v.kind == DictKind {
			if item, ok := v.dict().Get(e.name); ok {
				return item
			}
			return undefinedValue(e.name)
		}
		return r.attr(v, e.name)
	}
}

// slice compiles v[start:stop:step].
func (c *compiler) slice(e slice) eval {
	of := c.expr(e.of)
	var bounds [3]eval
	for i, b := range []expression{e.start, e.stop, e.step} {
		if b != nil {
			bounds[i] = c.expr(b)
		}
	}
	return func(r *run, f *frame) Value {
		v := of(r, f)
		var at [3]Value
		for i, b := range bounds {
			at[i] = none
			if b != nil {
				at[i] = b(r, f)
			}
		}
		return r.slice(v, at)
	}
}

// dict compiles a literal {key: value, …}.
func (c *compiler) dict(e dictLit) eval {
	keys, values := c.exprs(e.keys), c.exprs(e.values)
	return func(r *run, f *frame) Value {
		d := NewDict(len(keys))
		for i, k := range keys {
			key := k(r, f)
			if !hashable(key) {
				return r.failf("unhashable type: '%s'", key.typeName())
			}
			d.set(key, values[i](r, f))
		}
		return DictValue(d)
	}
}

// unary compiles not v, -v and +v.
func (c *compiler) unary(e unary) eval {
	of := c.expr(e.of)
	if e.op == "not" {
		return func(r *run, f *frame) Value { return BoolValue(!of(r, f).truth()) }
	}
	return func(r *run, f *frame) Value { return r.unarySign(e.op, of(r, f)) }
}

// binary compiles and, or, and the operators of arithmetic.
func (c *compiler) binary(e binary) eval {
	if e.op == "+" {
		parts := c.exprs(sumParts(e))
		return func(r *run, f *frame) Value {
			var buf [8]Value
			values, plain := r.evalAll(f, parts, buf[:0])
			if plain {
				return r.concat(values)
			}
			return r.sum(values)
		}
	}

	left, right := c.expr(e.left), c.expr(e.right)
	switch e.op {
	case "and":
		return func(r *run, f *frame) Value {
			if v := left(r, f); !v.truth() {
				return v
			}
			return right(r, f)
		}
	case "or":
		return func(r *run, f *frame) Value {
			if v := left(r, f); v.truth() {
				return v
			}
			return right(r, f)
		}
	}

	return func(r *run, f *frame) Value {
		a, b := left(r, f), right(r, f)
		if r.err != nil {
			return undefined
		}
		return r.arith(e.op, a, b)
	}
}

// sumParts returns the operands of a chain a + b + c, which the parser reads as (a + b) + c.
func sumParts(e expression) []expression {
	b, ok := e.(binary)
	if !ok || b.op != "+" {
		return []expression{e}
	}
	return append(sumParts(b.left), b.right)
}

// comparison compiles a chain of comparisons. As in Python, a < b < c means a < b and b < c, with b evaluated
// once.
func (c *compiler) comparison(e compare) eval {
	first, rest := c.expr(e.first), c.exprs(e.rest)
	return func(r *run, f *frame) Value {
		a := first(r, f)
		for i, next := range rest {
			b := next(r, f)
			if r.err != nil || !r.compare(e.ops[i], a, b) {
				return falseValue
			}
			a = b
		}
		return trueValue
	}
}

// conditional compiles a if test else b.
func (c *compiler) conditional(e conditional) eval {
	defer func(outer bool) { c.insideIf = outer }(c.insideIf)
	c.insideIf = true
	test, then := c.expr(e.test), c.expr(e.then)
	els := func(*run, *frame) Value {
		return undefinedValue("the inline if-expression evaluated to false and no else section was defined: it")
	}
	if e.els != nil {
		els = c.expr(e.els)
	}
	return func(r *run, f *frame) Value {
		if test(r, f).truth() {
			return then(r, f)
		}
		return els(r, f)
	}
}

// args compiles the arguments of a call. Callees must not change them.
func (c *compiler) args(a callArgs) func(*run, *frame) *arguments {
	positional, named := c.exprs(a.positional), c.exprs(a.named)
	var star, dict eval
	if a.star != nil {
		star = c.expr(a.star)
	}
	if a.dict != nil {
		dict = c.expr(a.dict)
	}

	if len(positional) == 0 && len(named) == 0 && star == nil && dict == nil {
		return func(*run, *frame) *arguments { return &noArguments }
	}
	return func(r *run, f *frame) *arguments {
		out := &arguments{}
		if len(positional) > 0 {
			out.positional, _ = r.evalAll(f, positional, make([]Value, 0, len(positional)))
		}
		if len(named) > 0 {
			// The capacity is cut, so that appending keywords copies the names and leaves the compiled ones alone.
			out.names = a.names[:len(a.names):len(a.names)]
			out.named, _ = r.evalAll(f, named, make([]Value, 0, len(named)+1))
		}
		if star != nil {
			items, _ := r.iterate(star(r, f))
			out.positional = append(out.positional, items...)
		}
		if dict != nil {
			r.addKeywords(out, dict(r, f))
		}
		return out
	}
}

// addKeywords appends the entries of a ** argument to the named arguments.
func (r *run) addKeywords(out *arguments, v Value) {
	if v.kind != DictKind {
		r.failf("argument after ** must be a mapping, not %s", v.typeName())
		return
	}
	for i, k := range v.dict().keys {
		if k.kind != String {
			r.failf("keywords must be strings")
			return
		}
		out.names, out.named = append(out.names, k.str), append(out.named, v.dict().values[i])
	}
}

// callExpr compiles a call.
func (c *compiler) callExpr(e call) eval {
	args := c.args(e.args)

	// A call such as s.strip() runs the method directly. It needs no bound method, which would be an allocation.
	if a, ok := e.of.(attribute); ok {
		if method, ok := stringMethods[a.name]; ok {
			of := c.expr(a.of)
			return func(r *run, f *frame) Value {
				v := of(r, f)
				given := args(r, f)
				if r.err != nil {
					return undefined
				}
				if v.kind == String {
					if !r.chargeRead(v) {
						return undefined
					}
					return method(r, v.str, given)
				}
				return r.call(r.attr(v, a.name), given)
			}
		}
	}

	of := c.expr(e.of)
	return func(r *run, f *frame) Value {
		fn, given := of(r, f), args(r, f)
		if r.err != nil {
			return undefined
		}
		return r.call(fn, given)
	}
}
