package chattemplate

// output compiles {{ … }} or literal text. Most templates print sums of strings or a ~ b ~ c. Their parts
// are appended to the output one by one, which avoids a joined copy.
func (c *compiler) output(s output) exec {
	if s.of == nil {
		return func(r *run, f *frame) signal {
			r.out = append(r.out, s.text...)
			return r.endOutput()
		}
	}

	if parts := sumParts(s.of); len(parts) > 1 {
		// Only plain strings may be written one by one. A sum of numbers has to be added, and Markup escapes.
		evals := c.exprs(parts)
		return func(r *run, f *frame) signal {
			r.line = s.line
			var buf [8]Value
			values, plain := r.evalAll(f, evals, buf[:0])
			if plain {
				for _, v := range values {
					r.out = append(r.out, v.str...)
				}
			} else if sum := r.sum(values); r.err == nil {
				r.write(sum)
			}
			return r.endOutput()
		}
	}

	write := c.writer(s.of)
	return func(r *run, f *frame) signal {
		r.line = s.line
		write(r, f)
		return r.endOutput()
	}
}

// writer compiles writing the text of an expression to the output. The parts of a ~ b and the text of a macro are
// written without a copy. That is the same as writing the joined text, because the output of a render
// that fails is discarded.
func (c *compiler) writer(e expression) func(*run, *frame) {
	switch e := e.(type) {
	case concat:
		parts := make([]func(*run, *frame), len(e.parts))
		for i, part := range e.parts {
			parts[i] = c.writer(part)
		}
		return func(r *run, f *frame) {
			for _, write := range parts {
				write(r, f)
			}
		}
	case conditional:
		return c.conditionalWriter(e)
	case call:
		if a, ok := e.of.(attribute); !ok || stringMethods[a.name] == nil {
			return c.callWriter(e)
		}
	}

	of := c.expr(e)
	return func(r *run, f *frame) {
		if v := of(r, f); r.err == nil {
			r.write(v)
		}
	}
}

// conditionalWriter compiles writing the text of a if test else b.
func (c *compiler) conditionalWriter(e conditional) func(*run, *frame) {
	defer func(outer bool) { c.insideIf = outer }(c.insideIf)
	c.insideIf = true
	if e.els == nil {
		whole := c.conditional(e) // its error names the missing else
		return func(r *run, f *frame) {
			if v := whole(r, f); r.err == nil {
				r.write(v)
			}
		}
	}

	test := c.expr(e.test)
	then, els := c.writer(e.then), c.writer(e.els)
	return func(r *run, f *frame) {
		if test(r, f).truth() {
			then(r, f)
		} else {
			els(r, f)
		}
	}
}

// callWriter compiles writing the result of a call. A macro writes to the output itself.
func (c *compiler) callWriter(e call) func(*run, *frame) {
	of, args := c.expr(e.of), c.args(e.args)
	simple := len(e.args.named) == 0 && e.args.star == nil && e.args.dict == nil
	positional := c.exprs(e.args.positional)

	return func(r *run, f *frame) {
		fn := of(r, f)
		target, _ := fn.ref.(*callable)

		switch {
		case r.err != nil:
		case target == nil || target.macro == nil:
			given := args(r, f)
			if r.err != nil {
				return
			}
			if v := r.call(fn, given); r.err == nil {
				r.write(v)
			}
		case simple:
			var buf [4]Value
			given := arguments{}
			given.positional, _ = r.evalAll(f, positional, buf[:0])
			r.writeMacro(target, &given)
		default:
			r.writeMacro(target, args(r, f))
		}
	}
}
