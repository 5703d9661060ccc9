package chattemplate

import "slices"

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

// scope holds the names of one body: a loop's body, a macro or the whole template. As in Jinja, a name that
// is set anywhere in a body belongs to its scope from the start. Until it is set it has the value that the
// name has outside.
type scope struct {
	fn     *funcScope
	parent *scope
	slots  map[string]int
	inits  []initial
	// outerInsideIf is the compiler's insideIf outside this scope. leaveScope restores it.
	outerInsideIf bool
}

// funcScope counts the slots of one frame. Nested scopes of one function share its frame.
type funcScope struct{ slots int }

// initial is the initial value of a name in a scope. It is evaluated each time the scope is entered.
type initial struct {
	slot int
	from eval
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

// defineSlot returns the slot of a name in the current scope, and assigns one if the name is new.
func (c *compiler) defineSlot(name string) int {
	if slot, ok := c.scope.slots[name]; ok {
		return slot
	}
	slot := c.scope.fn.slots
	c.scope.fn.slots++
	c.scope.slots[name] = slot
	return slot
}

// enterScope begins a scope inside the current function. params are the names that the statement itself sets,
// such as the target of a loop. The names that body sets start with their outer values.
func (c *compiler) enterScope(body []statement, params ...string) {
	c.pushScope(c.scope.fn, body, params)
}

// enterFuncScope begins the scope of a new function, which has its own frame.
func (c *compiler) enterFuncScope(body []statement, params ...string) {
	c.pushScope(&funcScope{}, body, params)
}

// pushScope makes a scope with a frame of fn the current one. It resolves the outer values of body's names
// first, because afterwards these names mean the new slots.
func (c *compiler) pushScope(fn *funcScope, body []statement, params []string) {
	s := &scope{fn: fn, parent: c.scope, slots: map[string]int{}, outerInsideIf: c.insideIf}
	c.insideIf = false

	var outside []eval
	names := namesSetIn(body)
	for _, n := range names {
		outside = append(outside, c.loadFrom(n, fn))
	}
	c.scope = s

	for _, p := range params {
		c.defineSlot(p)
	}
	for i, n := range names {
		if _, isParam := s.slots[n]; !isParam {
			s.inits = append(s.inits, initial{c.defineSlot(n), outside[i]})
		}
	}
}

// leaveScope ends the current scope and returns it.
func (c *compiler) leaveScope() *scope {
	s := c.scope
	c.scope, c.insideIf = s.parent, s.outerInsideIf
	return s
}

// init sets the names of the scope to their initial values.
func (s *scope) init(r *run, f *frame) {
	for _, i := range s.inits {
		f.slots[i.slot] = i.from(r, f)
	}
}

// load compiles reading a name in the current scope.
func (c *compiler) load(name string) eval { return c.loadFrom(name, c.scope.fn) }

// loadFrom compiles reading a name from a frame of fn. fn is the current function, or a new one inside it
// that has not begun. Depths 0 and 1 have closures without a loop, because nearly all names need no more.
func (c *compiler) loadFrom(name string, fn *funcScope) eval {
	up := 0
	for s := c.scope; s != nil; s = s.parent {
		if s.fn != fn {
			up++
			fn = s.fn
		}
		slot, ok := s.slots[name]
		if !ok {
			continue
		}
		switch up {
		case 0:
			return func(r *run, f *frame) Value { return f.slots[slot] }
		case 1:
			return func(r *run, f *frame) Value { return f.parent.slots[slot] }
		}
		return func(r *run, f *frame) Value {
			for range up {
				f = f.parent
			}
			return f.slots[slot]
		}
	}

	// No scope sets the name. A render resolves it once, before the first statement.
	if slices.Contains(unsupported, name) && !c.insideIf {
		c.fail(0, "No function named '"+name+"'.")
	}
	i, known := c.freeIndex[name]
	if !known {
		i = len(c.free)
		c.free = append(c.free, name)
		c.freeIndex[name] = i
	}
	return func(r *run, f *frame) Value { return r.free[i] }
}

// namesSetIn lists the names that body sets in its own scope. Bodies of if have no scope, so their names
// count too.
func namesSetIn(body []statement) (names []string) {
	known := map[string]bool{}
	eachNameSetIn(body, func(n string) {
		if !known[n] {
			known[n] = true
			names = append(names, n)
		}
	})
	return names
}

// eachNameSetIn calls add for each name that body sets in its own scope.
func eachNameSetIn(body []statement, add func(string)) {
	for _, s := range body {
		switch s := s.(type) {
		case setStmt:
			s.target.eachName(add)
		case setBlock:
			s.target.eachName(add)
		case *macroStmt:
			add(s.name)
		case ifStmt:
			for _, b := range s.bodies {
				eachNameSetIn(b, add)
			}
			eachNameSetIn(s.els, add)
		}
	}
}

// eachName calls add for each name that t sets. An attribute of a namespace sets no name.
func (t target) eachName(add func(string)) {
	if t.tuple != nil {
		for _, part := range t.tuple {
			part.eachName(add)
		}
	} else if t.attr == "" {
		add(t.name)
	}
}

// usesName reports whether any expression in body reads the name id. A macro gets caller, varargs and kwargs
// only if its body uses these names.
func usesName(body []statement, id string) bool {
	found := false
	walk(body, func(e expression) {
		n, is := e.(name)
		found = found || is && n.id == id
	})
	return found
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
