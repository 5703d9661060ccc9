package chattemplate

// compiler turns statements into closures. It resolves every name at compile time, so that a render reads a
// variable by its slot in a frame and needs no map. A name that the template does not set becomes a free
// name, whose value comes from the context or the globals.
type compiler struct {
	scope *scope
	// free lists the free names. A free name is read by its position in this list.
	free      []string
	freeIndex map[string]int
	// insideIf is set while the parts of an if statement or of "a if b else c" are compiled. Jinja reports an
	// unknown filter or test there only when a render reaches it.
	insideIf bool
	err      error
}

// compileTemplate compiles a parsed template.
func compileTemplate(body []statement) (*Template, error) {
	c := &compiler{freeIndex: map[string]int{}}
	root := &funcScope{}
	c.scope = &scope{fn: root, slots: map[string]int{}}

	t := &Template{}
	for _, n := range namesSetIn(body) {
		t.stored = append(t.stored, storedName{n, c.defineSlot(n)})
	}
	t.root = c.statements(body)
	t.slots, t.free = root.slots, c.free
	return t, c.err
}

// fail records an error of the template. Only the first one is kept.
func (c *compiler) fail(line int, message string) {
	if c.err == nil {
		c.err = &Error{Line: line, Message: message}
	}
}

// statements compiles a list of statements.
func (c *compiler) statements(body []statement) []exec {
	out := make([]exec, 0, len(body))
	for _, s := range body {
		out = append(out, c.statement(s))
	}
	return out
}

// statement compiles one statement.
func (c *compiler) statement(s statement) exec {
	switch s := s.(type) {
	case output:
		return c.output(s)
	case ifStmt:
		return c.ifStatement(s)
	case forStmt:
		return c.forStatement(s)
	case setStmt:
		value, store := c.expr(s.value), c.store(s.target)
		return func(r *run, f *frame) signal {
			r.line = s.line
			store(r, f, value(r, f))
			return r.endStatement()
		}
	case setBlock:
		return c.setBlock(s)
	case *macroStmt:
		slot, macro := c.defineSlot(s.name), c.macro(s)
		return func(r *run, f *frame) signal {
			f.slots[slot] = macro(f)
			return r.endStatement()
		}
	case callBlock:
		return c.callBlock(s)
	case filterBlock:
		return c.filterBlock(s)
	case withStmt:
		return c.withStatement(s)
	case scopeStmt:
		c.enterScope(s.body)
		body := c.statements(s.body)
		scope := c.leaveScope()
		return func(r *run, f *frame) signal {
			scope.init(r, f)
			return r.execAll(f, body)
		}
	case doStmt:
		of := c.expr(s.of)
		return func(r *run, f *frame) signal {
			of(r, f)
			return r.endStatement()
		}
	case jump:
		return func(r *run, f *frame) signal { return s.signal }
	}

	c.fail(0, "unknown statement")
	return nil
}

// endStatement charges one step for a statement. It stops the render after an error.
func (r *run) endStatement() signal {
	if !r.charge(1) {
		return stop
	}
	return next
}

// ifStatement compiles {% if %} with its elif and else bodies.
func (c *compiler) ifStatement(s ifStmt) exec {
	outer := c.insideIf
	c.insideIf = true
	tests := c.exprs(s.tests)

	bodies := make([][]exec, len(s.bodies))
	for i, b := range s.bodies {
		bodies[i] = c.statements(b)
	}
	els := c.statements(s.els)
	c.insideIf = outer
	return func(r *run, f *frame) signal {
		for i, test := range tests {
			r.line = s.line
			yes := test(r, f).truth()
			if !r.charge(1) {
				return stop
			}
			if yes {
				return r.execAll(f, bodies[i])
			}
		}
		return r.execAll(f, els)
	}
}

// setBlock compiles {% set name %}…{% endset %}, which assigns the rendered body.
func (c *compiler) setBlock(s setBlock) exec {
	c.enterScope(s.body)
	body := c.statements(s.body)
	scope := c.leaveScope()
	filters, store := c.filterChain(s.filters), c.store(s.target)
	return func(r *run, f *frame) signal {
		scope.init(r, f)
		text, sig := r.capture(f, body)
		if sig != next {
			return sig
		}
		r.line = s.line
		store(r, f, filters(r, f, StringValue(text)))
		return r.endStatement()
	}
}

// filterBlock compiles {% filter %}, which writes the rendered body through filters.
func (c *compiler) filterBlock(s filterBlock) exec {
	c.enterScope(s.body)
	body := c.statements(s.body)
	scope := c.leaveScope()
	filters := c.filterChain(s.filters)
	return func(r *run, f *frame) signal {
		scope.init(r, f)
		text, sig := r.capture(f, body)
		if sig != next {
			return sig
		}
		r.line = s.line
		if v := filters(r, f, StringValue(text)); r.err == nil {
			r.write(v)
		}
		return r.endOutput()
	}
}

// withStatement compiles {% with %}. Its values are evaluated in the outer scope, before any target is set.
func (c *compiler) withStatement(s withStmt) exec {
	values := c.exprs(s.values)
	var params []string
	for _, t := range s.targets {
		t.eachName(func(n string) { params = append(params, n) })
	}
	c.enterScope(s.body, params...)

	stores := make([]func(*run, *frame, Value), len(s.targets))
	for i, t := range s.targets {
		stores[i] = c.store(t)
	}
	body := c.statements(s.body)
	scope := c.leaveScope()
	return func(r *run, f *frame) signal {
		var buf [8]Value
		got, _ := r.evalAll(f, values, buf[:0])
		scope.init(r, f)
		for i, v := range got {
			stores[i](r, f, v)
		}
		if r.err != nil {
			return stop
		}
		return r.execAll(f, body)
	}
}

// store compiles the assignment of a value to a target.
func (c *compiler) store(t target) func(*run, *frame, Value) {
	switch {
	case t.tuple != nil:
		parts := make([]func(*run, *frame, Value), len(t.tuple))
		for i, p := range t.tuple {
			parts[i] = c.store(p)
		}
		return func(r *run, f *frame, v Value) {
			items, ok := r.iterate(v)
			if !ok {
				return
			}
			if len(items) != len(parts) {
				if len(items) > len(parts) {
					r.failf("too many values to unpack (expected %d)", len(parts))
				} else {
					r.failf("not enough values to unpack (expected %d, got %d)", len(parts), len(items))
				}
				return
			}
			for i, store := range parts {
				store(r, f, items[i])
			}
		}
	case t.attr != "":
		of := c.load(t.name)
		return func(r *run, f *frame, v Value) {
			ns, ok := of(r, f).ref.(*namespace)
			if !ok {
				r.failf("cannot assign attribute on non-namespace object")
				return
			}
			ns.attrs.Set(t.attr, v)
		}
	}

	slot := c.defineSlot(t.name)
	return func(r *run, f *frame, v Value) { f.slots[slot] = v }
}
