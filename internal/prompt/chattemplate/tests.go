package chattemplate

import (
	"math/big"
	"strings"
)

// tester is the implementation of a Jinja test, which stands after "is".
type tester func(r *run, v Value, args *arguments) bool

// testers holds the tests by name. An init function fills it, because the test "test" reads it.
var testers map[string]tester

func init() {
	kind := func(k Kind) tester { return func(_ *run, v Value, _ *arguments) bool { return v.kind == k } }
	operator := func(op string) tester {
		return func(r *run, v Value, a *arguments) bool { return r.compare(op, v, a.argument(0, "other", undefined)) }
	}
	testers = map[string]tester{
		"defined":   func(_ *run, v Value, _ *arguments) bool { return v.kind != Undefined },
		"undefined": kind(Undefined),
		"none":      kind(None), "string": kind(String), "float": kind(Float), "mapping": kind(DictKind), "boolean": kind(Bool),
		"integer":  kind(Int),
		"number":   func(_ *run, v Value, _ *arguments) bool { return v.isNumber() },
		"true":     func(_ *run, v Value, _ *arguments) bool { return v.kind == Bool && v.num != 0 },
		"false":    func(_ *run, v Value, _ *arguments) bool { return v.kind == Bool && v.num == 0 },
		"sequence": isSequence,
		"iterable": isIterable,
		"callable": func(_ *run, v Value, _ *arguments) bool { return v.kind == Func || v.kind == Undefined },
		"sameas":   isSame,
		"escaped":  func(_ *run, v Value, _ *arguments) bool { return v.markup },
		"lower":    func(_ *run, v Value, _ *arguments) bool { return stringMethods["islower"](nil, text(v), nil).truth() },
		"upper":    func(_ *run, v Value, _ *arguments) bool { return stringMethods["isupper"](nil, text(v), nil).truth() },
		"odd":      func(r *run, v Value, _ *arguments) bool { return equal(r.arith("%", v, IntValue(2)), IntValue(1)) },
		"even":     func(r *run, v Value, _ *arguments) bool { return equal(r.arith("%", v, IntValue(2)), IntValue(0)) },
		"divisibleby": func(r *run, v Value, a *arguments) bool {
			return equal(r.arith("%", v, a.argument(0, "num", undefined)), IntValue(0))
		},
		"filter": func(_ *run, v Value, _ *arguments) bool { _, ok := filters[v.str]; return ok && v.kind == String },
		"test":   func(_ *run, v Value, _ *arguments) bool { _, ok := testers[v.str]; return ok && v.kind == String },
		"in":     operator("in"),
	}

	for op, names := range map[string]string{"==": "== eq equalto", "!=": "!= ne", "<": "< lt lessthan", "<=": "<= le",
		">": "> gt greaterthan", ">=": ">= ge"} {
		for _, name := range strings.Fields(names) {
			testers[name] = operator(op)
		}
	}
}

// isSequence imitates Jinja's test sequence: the value has a length and can be indexed.
func isSequence(_ *run, v Value, _ *arguments) bool {
	switch v.kind {
	case String, DictKind, Undefined: // Undefined has __len__ and __getitem__
		return true
	case ListKind:
		return v.list().seq <= rangeSeq
	}
	return false
}

// isIterable imitates Jinja's test iterable.
func isIterable(_ *run, v Value, _ *arguments) bool {
	switch v.kind {
	case String, DictKind, ListKind, Undefined:
		return true
	case object:
		_, ok := v.ref.(*loop)
		return ok
	}
	return false
}

// isSame imitates Python's operator is. Equal strings, floats and ints of at most 64 bits count as the same
// object, because Python may share them too.
func isSame(_ *run, v Value, a *arguments) bool {
	o := a.argument(0, "other", undefined)
	if v.kind != o.kind {
		return false
	}

	switch v.kind {
	case Undefined, None:
		return true
	case Bool, Float:
		return v.num == o.num
	case Int:
		x, _ := v.ref.(*big.Int)
		y, _ := o.ref.(*big.Int)
		return v.num == o.num && x == y
	case String:
		return v.str == o.str
	}

	return v.ref == o.ref
}

// test compiles "v is name(args)". An unknown test is an error of the template. Inside an if it is an error
// only when a render reaches it, as in Jinja.
func (c *compiler) test(e testExpr) eval {
	of, args := c.expr(e.of), c.args(e.args)
	t, ok := testers[e.name]
	if !ok {
		if !c.insideIf {
			c.fail(e.line, "No test named '"+e.name+"'.")
		}
		return func(r *run, f *frame) Value { return r.failf("No test named '%s'.", e.name) }
	}

	switch e.name {
	case "defined":
		return func(r *run, f *frame) Value { return BoolValue(of(r, f).kind != Undefined) }
	case "string":
		return func(r *run, f *frame) Value { return BoolValue(of(r, f).kind == String) }
	case "none":
		return func(r *run, f *frame) Value { return BoolValue(of(r, f).kind == None) }
	}

	return func(r *run, f *frame) Value {
		v, given := of(r, f), args(r, f)
		if r.err != nil || v.kind == String && !r.chargeRead(v) {
			return falseValue
		}
		return BoolValue(t(r, v, given))
	}
}
