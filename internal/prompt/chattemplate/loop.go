package chattemplate

// loop is the variable loop inside a for statement.
type loop struct {
	items []Value
	// index is the position of the current element, from 0. depth is the depth of recursion, from 1.
	index int
	depth int
	// changed holds the arguments of the last call of loop.changed; nil before the first call.
	changed []Value
	// code is the compiled loop, and outerFrame the frame around it. A recursive call needs both.
	code       *loopCode
	outerFrame *frame
}

// loopCode is a compiled for statement. It is shared by all renders.
type loopCode struct {
	iter   eval
	filter eval
	store  func(*run, *frame, Value)
	scope  *scope
	// loopSlot is the slot of the variable loop.
	loopSlot  int
	body, els []exec
	elseScope *scope
	recursive bool
	line      int
	// filterScope and filterStore assign the target while the filter runs. The filter has a scope without
	// loop, because Jinja filters the elements before the loop begins.
	filterScope *scope
	filterStore func(*run, *frame, Value)
}

// forStatement compiles {% for %}.
func (c *compiler) forStatement(s forStmt) exec {
	code := &loopCode{line: s.line, iter: c.expr(s.iter), recursive: s.recursive}
	var params []string
	s.target.eachName(func(n string) { params = append(params, n) })

	if s.filter != nil {
		c.enterScope(nil, params...)
		code.filterStore, code.filter = c.store(s.target), c.expr(s.filter)
		code.filterScope = c.leaveScope()
	}

	params = append(params, "loop")

	// A recursive loop calls itself. Each call needs its own frame, so that it does not overwrite the variables of
	// the outer call.
	if s.recursive {
		c.enterFuncScope(s.body, params...)
	} else {
		c.enterScope(s.body, params...)
	}

	code.loopSlot = c.scope.slots["loop"]
	code.store = c.store(s.target)
	code.body = c.statements(s.body)
	code.scope = c.leaveScope()
	c.enterScope(s.els)
	code.els = c.statements(s.els)
	code.elseScope = c.leaveScope()
	return func(r *run, f *frame) signal {
		r.line = code.line
		of := code.iter(r, f)
		if r.err != nil {
			return stop
		}
		return code.runLoop(r, f, of, 1)
	}
}

// runLoop executes the loop over the elements of of. f is the frame around the loop, and depth its depth of
// recursion.
func (c *loopCode) runLoop(r *run, f *frame, of Value, depth int) signal {
	items, ok := r.iterate(of)
	if !ok {
		return stop
	}

	if c.filter != nil {
		items, ok = c.selectItems(r, f, items)
		if !ok {
			return stop
		}
	}

	if len(items) == 0 {
		c.elseScope.init(r, f)
		return r.execAll(f, c.els)
	}

	l := &loop{items: items, depth: depth, code: c, outerFrame: f}
	if c.recursive {
		f = &frame{slots: make([]Value, c.scope.fn.slots), parent: f}
	}

	self := Value{kind: object, ref: l}
	for i, item := range items {
		l.index = i
		c.scope.init(r, f)
		f.slots[c.loopSlot] = self
		c.store(r, f, item)
		if !r.charge(1) {
			return stop
		}
		switch r.execAll(f, c.body) {
		case stop:
			return stop
		case breakLoop:
			return next
		}
	}

	return next
}

// selectItems returns the elements for which the loop's filter is true. ok is false after an error.
func (c *loopCode) selectItems(r *run, f *frame, items []Value) (kept []Value, ok bool) {
	for _, item := range items {
		c.filterScope.init(r, f)
		c.filterStore(r, f, item)
		if c.filter(r, f).truth() {
			kept = append(kept, item)
		}
		if !r.charge(1) {
			return nil, false
		}
	}
	return kept, true
}

// recurse evaluates loop(items) in a recursive loop. It returns the text that the inner loop writes.
func (l *loop) recurse(r *run, args *arguments) Value {
	if !l.code.recursive || len(args.positional) != 1 {
		return r.failf("loop() needs a recursive loop and the elements to go on with")
	}
	r.calls++
	if r.calls > r.lim.Calls {
		return r.failf("maximum recursion depth exceeded")
	}

	// The inner loop appends to the output. Its text is cut off again and returned as a value.
	start := len(r.out)
	l.code.runLoop(r, l.outerFrame, args.positional[0], l.depth+1)
	text := string(r.out[start:])
	r.out = r.out[:start]
	r.calls--
	r.chargeString(len(text))
	return StringValue(text)
}

// attr returns a member of loop, as Jinja's LoopContext has it.
func (l *loop) attr(name string) (Value, bool) {
	n := len(l.items)
	switch name {
	case "index":
		return IntValue(l.index + 1), true
	case "index0":
		return IntValue(l.index), true
	case "revindex":
		return IntValue(n - l.index), true
	case "revindex0":
		return IntValue(n - l.index - 1), true
	case "first":
		return BoolValue(l.index == 0), true
	case "last":
		return BoolValue(l.index == n-1), true
	case "length":
		return IntValue(n), true
	case "depth":
		return IntValue(l.depth), true
	case "depth0":
		return IntValue(l.depth - 1), true
	case "previtem":
		if l.index > 0 {
			return l.items[l.index-1], true
		}
		return undefinedValue("there is no previous item: previtem"), true
	case "nextitem":
		if l.index < n-1 {
			return l.items[l.index+1], true
		}
		return undefinedValue("there is no next item: nextitem"), true
	case "cycle":
		return function(name, func(r *run, args *arguments) Value {
			if len(args.positional) == 0 {
				return r.failf("no items for cycling given")
			}
			return args.positional[l.index%len(args.positional)]
		}), true
	case "changed":
		return function(name, func(r *run, args *arguments) Value {
			same := l.changed != nil && equal(tuple(l.changed...), tuple(args.positional...))
			l.changed = append([]Value{}, args.positional...)
			return BoolValue(!same)
		}), true
	}

	return undefined, false
}
