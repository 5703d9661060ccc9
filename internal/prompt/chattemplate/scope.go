package chattemplate

import "slices"

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
