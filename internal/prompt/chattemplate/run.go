package chattemplate

import (
	"fmt"
	"time"
	"unsafe"
)

// run is one render. The first error is kept in err; from then on evaluating goes on only as
// far as the statement at hand, and what it yields is not used. That keeps an error path out
// of every closure, and nothing is lost, because nothing has effects but the output.
type run struct {
	out         []byte
	base        int // where this render's output begins in out
	lim         Limits
	steps       int
	calls       int
	line        int // of the statement at hand
	now         time.Time
	vars        *Dict
	free        []Value
	filterInput Value // what a block hands to its next filter
	err         error
}

// frame holds the variables of one function body: the template, or one call of a macro.
type frame struct {
	slots  []Value
	parent *frame // of the function around it
}

type (
	eval func(r *run, f *frame) Value
	exec func(r *run, f *frame) signal
)

// resolve finds a name that the template has not set.
func (r *run) resolve(name string) Value {
	if r.vars != nil {
		if v, ok := r.vars.Get(name); ok {
			return v
		}
	}

	if v, ok := globals[name]; ok {
		return v
	}
	return undefinedValue(name)
}

func (r *run) failf(format string, args ...any) Value {
	if r.err == nil {
		r.err = &Error{Line: r.line, Message: fmt.Sprintf(format, args...)}
	}
	return undefined
}

// charge counts n steps of work.
func (r *run) charge(n int) bool {
	r.steps -= n
	if r.steps < 0 {
		r.failf("template takes too many steps")
		return false
	}
	return r.err == nil
}

// chargeString accounts for a new string of n bytes; false means that it must not be made.
func (r *run) chargeString(n int) bool {
	if n > r.lim.Output {
		r.failf("template makes a string of more than %d bytes", r.lim.Output)
		return false
	}
	return r.charge(1 + n/16)
}

func (r *run) execAll(f *frame, body []exec) signal {
	for _, s := range body {
		if sig := s(r, f); sig != next {
			return sig
		}
	}
	return next
}

// write ends an output statement.
func (r *run) endOutput() signal {
	if len(r.out)-r.base > r.lim.Output {
		r.failf("template writes more than %d bytes", r.lim.Output)
	}
	if r.err != nil || !r.charge(1) {
		return stop
	}
	return next
}

// capture runs body and returns what it wrote instead of writing it.
func (r *run) capture(f *frame, body []exec) (string, signal) {
	start := len(r.out)
	sig := r.execAll(f, body)
	text := string(r.out[start:])
	r.out = r.out[:start]
	if !r.chargeString(len(text)) {
		sig = stop
	}
	return text, sig
}

// failIfUndefined fails where v is undefined: Python's Undefined refuses to be computed with.
func (r *run) failIfUndefined(v Value) bool {
	if v.kind != Undefined {
		return false
	}
	r.failUndefined(v)
	return true
}

func (r *run) failUndefined(v Value) Value {
	if v.str == "" {
		return r.failf("value is undefined")
	}
	return r.failf("%s is undefined", v.str)
}

// stringOf is the string of b, which must not be changed afterwards.
func stringOf(b []byte) Value {
	return StringValue(unsafe.String(unsafe.SliceData(b), len(b)))
}

// arguments are what a call passes.
type arguments struct {
	positional []Value
	names      []string
	named      []Value
}

// argument is the argument at position i or of the given name, absent where neither was passed.
func (a *arguments) argument(i int, name string, absent Value) Value {
	if i < len(a.positional) {
		return a.positional[i]
	}
	if v, ok := a.keyword(name); ok {
		return v
	}
	return absent
}

func (a *arguments) isPassed(i int, name string) bool {
	_, ok := a.keyword(name)
	return i < len(a.positional) || ok
}

func (a *arguments) keyword(name string) (Value, bool) {
	for i, n := range a.names {
		if n == name {
			return a.named[i], true
		}
	}
	return undefined, false
}

// call calls v.
func (r *run) call(v Value, args *arguments) Value {
	if v.kind == Undefined {
		return r.failUndefined(v)
	}
	if l, ok := v.ref.(*loop); ok {
		return l.recurse(r, args)
	}

	c, ok := v.ref.(*callable)
	if !ok {
		return r.failf("'%s' object is not callable", v.typeName())
	}
	if !r.charge(1) {
		return undefined
	}

	r.calls++
	if r.calls > r.lim.Calls {
		r.failf("maximum recursion depth exceeded")
		return undefined
	}

	out := c.call(r, args)
	r.calls--
	return out
}
