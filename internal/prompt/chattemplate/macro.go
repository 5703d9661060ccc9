package chattemplate

import "slices"

// macro compiles a macro. The closure that it returns makes the macro's function for an outer frame.
//
// A macro reads outer variables with the values that they have when it is called. Its body gets surplus
// arguments in varargs and kwargs, and the body of a call block in caller. As in Jinja, passing them is an
// error unless the body uses those names.
func (c *compiler) macro(m *macroStmt) func(around *frame) Value {
	// A default may read caller, varargs and kwargs too, so that usesName searches the defaults as well.
	body := append([]statement{}, m.body...)
	for _, d := range m.defaults {
		body = append(body, doStmt{d})
	}

	// The names that the body uses become hidden parameters, so that they have slots.
	special := map[string]bool{}
	params := m.params
	for _, n := range []string{"caller", "kwargs", "varargs"} {
		if usesName(body, n) {
			special[n] = true
			params = append(params[:len(params):len(params)], n)
		}
	}

	c.enterFuncScope(m.body, params...)
	slots := make([]int, len(m.params))
	for i, p := range m.params {
		slots[i] = c.scope.slots[p]
	}

	defaults := make([]eval, len(m.params))
	for i, d := range m.defaults {
		defaults[len(m.params)-len(m.defaults)+i] = c.expr(d)
	}
	s := &macroCode{name: m.name, params: m.params, slots: slots, defaults: defaults, special: special}
	s.body = c.statements(m.body)
	s.scope = c.leaveScope()
	return func(around *frame) Value {
		fn := &callable{name: m.name, macro: s, around: around}
		fn.call = func(r *run, args *arguments) Value { return s.call(r, around, args) }
		return Value{kind: Func, ref: fn}
	}
}

// macroCode is a compiled macro. It is shared by all renders.
type macroCode struct {
	name   string
	params []string
	// slots are the slots of params.
	slots []int
	// defaults are the default values of params, nil for a parameter without one.
	defaults []eval
	// special holds the names that the body uses out of caller, kwargs and varargs.
	special map[string]bool
	scope   *scope
	body    []exec
}

// call runs the macro in a new frame and returns the text that it writes. The line of the call is restored
// afterwards, so that later errors name it.
func (m *macroCode) call(r *run, around *frame, args *arguments) Value {
	start := len(r.out)
	if !m.write(r, around, args) {
		return undefined
	}
	text, ok := r.takeText(start)
	if !ok {
		return undefined
	}
	return StringValue(text)
}

// write runs the macro in a new frame. Its text stays in the output. It returns false after an error.
func (m *macroCode) write(r *run, around *frame, args *arguments) bool {
	f := newFrame(m.scope.fn.slots, around)
	if !m.bind(r, f, args) {
		return false
	}

	m.scope.init(r, f)
	line := r.line
	sig := r.execAll(f, m.body)
	r.line = line
	return sig != stop
}

// newFrame returns a frame with n slots. A few slots need no second allocation.
func newFrame(n int, parent *frame) *frame {
	const few = 4
	if n > few {
		return &frame{slots: make([]Value, n), parent: parent}
	}
	both := &struct {
		frame
		slots [few]Value
	}{}
	both.frame = frame{slots: both.slots[:n], parent: parent}
	return &both.frame
}

// bind assigns the arguments to the parameters. A parameter without an argument gets its default, or is
// undefined. It returns false after an error.
func (m *macroCode) bind(r *run, f *frame, args *arguments) bool {
	var few [16]bool
	given := few[:]
	if len(m.params) > len(few) {
		given = make([]bool, len(m.params))
	}
	given = given[:len(m.params)]
	n := min(len(args.positional), len(m.params))
	for i, v := range args.positional[:n] {
		f.slots[m.slots[i]], given[i] = v, true
	}

	// A keyword fills its parameter, unless a positional argument did. Others go to caller or kwargs.
	var rest *Dict
	caller := undefinedValue("caller")
	for i, name := range args.names {
		at := -1
		for k, p := range m.params {
			if p == name && !given[k] {
				at = k
			}
		}

		switch {
		case at >= 0:
			f.slots[m.slots[at]], given[at] = args.named[i], true
		case name == "caller" && m.special["caller"]:
			caller = args.named[i]
		default:
			if rest == nil {
				rest = &Dict{}
			}
			rest.Set(name, args.named[i])
		}
	}

	if !m.bindSpecial(r, f, args.positional[n:], rest, caller) {
		return false
	}

	// Defaults come last, because they may read the parameters and the special names.
	for i, ok := range given {
		switch {
		case ok:
		case m.defaults[i] != nil:
			f.slots[m.slots[i]] = m.defaults[i](r, f)
		default:
			f.slots[m.slots[i]] = undefinedValue("parameter '" + m.params[i] + "' was not provided and")
		}
	}

	return r.err == nil
}

// bindSpecial assigns varargs, kwargs and caller. extra are the surplus positional arguments and rest the
// surplus keywords. Both are errors if the body does not use the name.
func (m *macroCode) bindSpecial(r *run, f *frame, extra []Value, rest *Dict, caller Value) bool {
	if m.special["varargs"] {
		f.slots[m.scope.slots["varargs"]] = tuple(slices.Clone(extra)...)
	} else if len(extra) > 0 {
		r.failf("macro '%s' takes not more than %d argument(s)", m.name, len(m.params))
	}

	if m.special["kwargs"] {
		if rest == nil {
			rest = &Dict{}
		}
		f.slots[m.scope.slots["kwargs"]] = DictValue(rest)
	} else if rest != nil {
		r.failf("macro '%s' takes no keyword argument '%s'", m.name, rest.keys[0].str)
	}

	if m.special["caller"] {
		f.slots[m.scope.slots["caller"]] = caller
	}
	return r.err == nil
}

// callBlock compiles {% call %}. It calls a macro and passes the body of the block as the argument caller.
func (c *compiler) callBlock(s callBlock) exec {
	of, _ := s.call.(call)
	fn := c.expr(of.of)
	args := c.args(of.args)
	macro := c.macro(s.macro)
	return func(r *run, f *frame) signal {
		r.line = s.line
		a := *args(r, f)
		a.names, a.named = append(a.names, "caller"), append(a.named, macro(f))
		target := fn(r, f)
		if r.err != nil {
			return stop
		}
		if fn, ok := target.ref.(*callable); ok && fn.macro != nil {
			r.writeMacro(fn, &a)
		} else if v := r.call(target, &a); r.err == nil {
			r.write(v)
		}
		return r.endOutput()
	}
}
