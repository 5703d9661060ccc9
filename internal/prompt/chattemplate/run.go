package chattemplate

import (
	"fmt"
	"time"
	"unsafe"
)

// run is the state of one render. The first error is kept in err. Evaluation then continues to the end of the
// current statement, and its values are discarded. This keeps error results out of every closure. It is safe
// because a failed render discards its output.
type run struct {
	out []byte
	// base is the position in out at which the output of this render begins.
	base int
	lim  Limits
	// done ends the render. It is checked when no more than nextCheck steps are left.
	done      <-chan struct{}
	nextCheck int
	// steps is the number of steps left, and calls the current depth of calls.
	steps int
	calls int
	// line is the line of the current statement, for errors.
	line int
	now  time.Time
	vars *Dict
	// plain hides the functions that are not Jinja's own.
	plain bool
	// free holds the values of the template's free names.
	free []Value
	// filterInput is the input of the next filter in the chain of a block.
	filterInput Value
	err         error
}

// frame holds the variables of one function: the template, a call of a macro, or a call of a recursive loop.
type frame struct {
	slots []Value
	// parent is the frame of the enclosing function.
	parent *frame
}

type (
	eval func(r *run, f *frame) Value
	exec func(r *run, f *frame) signal
)

// resolve returns the value of a name from the context, else from the globals, else undefined.
func (r *run) resolve(name string) Value {
	if r.vars != nil {
		if v, ok := r.vars.Get(name); ok {
			return v
		}
	}

	if v, ok := globals[name]; ok && !(r.plain && isHuggingFace(name)) {
		return v
	}
	return undefinedValue(name)
}

// failf records the first error of the render, at the current line. It returns undefined, so that callers can
// return its result.
func (r *run) failf(format string, args ...any) Value {
	if r.err == nil {
		r.err = &Error{Line: r.line, Message: fmt.Sprintf(format, args...)}
	}
	return undefined
}

// charge deducts n steps of work. It returns false if none are left or the render has failed.
func (r *run) charge(n int) bool {
	r.steps -= n
	if r.steps < 0 {
		r.failf("template takes too many steps")
		return false
	}
	if r.steps <= r.nextCheck {
		r.checkDone()
	}
	return r.err == nil
}

// checkSteps is the number of steps between two checks of done.
const checkSteps = 4096

// checkDone ends the render where done is closed.
func (r *run) checkDone() {
	r.nextCheck = r.steps - checkSteps
	select {
	case <-r.done:
		if r.err == nil {
			r.err = ErrStopped
		}
	default:
	}
}

// chargeString charges the steps for a new string of n bytes. If it returns false the caller must not make
// the string.
func (r *run) chargeString(n int) bool {
	if n > r.lim.Output {
		r.failf("template makes a string of more than %d bytes", r.lim.Output)
		return false
	}
	return r.charge(1 + n/16)
}

// chargeRead charges the steps for reading v once: one for each sixteen bytes of a string and for each element.
// Converting a big integer to text costs the square of its length. It returns false as charge does.
func (r *run) chargeRead(v Value) bool {
	n := 0
	switch {
	case v.kind == String:
		n = len(v.str) / 16
	case v.isBig():
		words := v.big().BitLen() / 64
		n = words * words / 16
	case v.kind == ListKind:
		n = len(v.list().Items)
	case v.kind == DictKind:
		n = v.dict().Len()
	}
	return n == 0 && r.err == nil || r.charge(n)
}

// chargeItems charges the steps for a new list of n elements. It returns false as charge does, and the caller must
// then not make the list.
func (r *run) chargeItems(n int) bool {
	const steps = 3 // an element has as many bytes as a string of three steps
	if n > r.lim.Steps {
		n = r.lim.Steps
	}
	return r.charge(steps * n)
}

// write appends the text of v to the output.
func (r *run) write(v Value) {
	if v.kind != String && !r.chargeRead(v) {
		return
	}
	r.out = appendStr(r.out, v)
}

// execAll runs statements until one of them ends with another signal than next.
func (r *run) execAll(f *frame, body []exec) signal {
	for _, s := range body {
		if sig := s(r, f); sig != next {
			return sig
		}
	}
	return next
}

// endOutput ends an output statement. It checks the limit on the output.
func (r *run) endOutput() signal {
	if len(r.out)-r.base > r.lim.Output {
		r.failf("template writes more than %d bytes", r.lim.Output)
	}
	if r.err != nil || !r.charge(1) {
		return stop
	}
	return next
}

// capture runs body and returns the text that it writes, without adding it to the output.
func (r *run) capture(f *frame, body []exec) (string, signal) {
	start := len(r.out)
	sig := r.execAll(f, body)
	text, ok := r.takeText(start)
	if !ok {
		sig = stop
	}
	return text, sig
}

// takeText removes the output from start on and returns it. It charges the steps for a new string, and returns
// false if none are left or the render has failed.
func (r *run) takeText(start int) (text string, ok bool) {
	text = string(r.out[start:])
	r.out = r.out[:start]
	return text, r.chargeString(len(text))
}

// failIfUndefined fails and returns true if v is undefined. Jinja's Undefined raises in every computation.
func (r *run) failIfUndefined(v Value) bool {
	if v.kind != Undefined {
		return false
	}
	r.failUndefined(v)
	return true
}

// failUndefined reports the use of an undefined value. Its str is the name for the message.
func (r *run) failUndefined(v Value) Value {
	if v.str == "" {
		return r.failf("value is undefined")
	}
	return r.failf("%s is undefined", v.str)
}

// stringOf returns a string that shares the memory of b. Nothing may change b afterwards.
func stringOf(b []byte) Value {
	return StringValue(unsafe.String(unsafe.SliceData(b), len(b)))
}

// arguments are the arguments of one call. names[i] is the keyword of named[i].
type arguments struct {
	positional []Value
	names      []string
	named      []Value
}

// argument returns the argument at position i or with the given keyword. It returns absent if neither was
// passed.
func (a *arguments) argument(i int, name string, absent Value) Value {
	if i < len(a.positional) {
		return a.positional[i]
	}
	if v, ok := a.keyword(name); ok {
		return v
	}
	return absent
}

// isPassed reports whether an argument was passed, by position or by keyword.
func (a *arguments) isPassed(i int, name string) bool {
	_, ok := a.keyword(name)
	return i < len(a.positional) || ok
}

// keyword returns the argument with a keyword.
func (a *arguments) keyword(name string) (Value, bool) {
	for i, n := range a.names {
		if n == name {
			return a.named[i], true
		}
	}
	return undefined, false
}

// call calls v with args. It fails if v is not callable or calls nest too deeply.
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
	if !r.beginCall() {
		return undefined
	}
	out := c.call(r, args)
	r.calls--
	return out
}

// writeMacro calls a macro that writes its text to the output.
func (r *run) writeMacro(c *callable, args *arguments) {
	if r.err == nil && r.beginCall() {
		c.macro.write(r, c.around, args)
		r.calls--
	}
}

// beginCall enters one level of calls. It returns false if calls nest too deeply, or no steps are left.
func (r *run) beginCall() bool {
	if !r.charge(1) {
		return false
	}
	r.calls++
	if r.calls > r.lim.Calls {
		r.failf("maximum recursion depth exceeded")
		return false
	}
	return true
}
