package chattemplate

import (
	"math"
	"math/big"
	"strings"
)

// maxBits bounds the size of integers. Without it a power of a power could use all memory.
const maxBits = 1 << 16

// sum adds at least one value, from left to right, with Python's + operator.
func (r *run) sum(values []Value) Value {
	v := values[0]
	for _, next := range values[1:] {
		if r.err != nil {
			return undefined
		}
		v = r.addValues(v, next)
	}
	return v
}

// concat evaluates Jinja's ~ operator: it converts each value to text and joins the texts.
func (r *run) concat(values []Value) Value {
	n := 0
	for _, v := range values {
		n += len(v.str)
		if v.kind != String && !r.chargeRead(v) {
			return undefined
		}
	}
	if r.err != nil || !r.chargeString(n) {
		return undefined
	}

	b := make([]byte, 0, n)
	for _, v := range values {
		b = appendStr(b, v)
	}
	return stringOf(b)
}

// addValues evaluates a + b for numbers, strings, lists and tuples. Any other pair is an error, as in Python.
func (r *run) addValues(a, b Value) Value {
	switch {
	case a.isNumber() && b.isNumber():
		return r.arith("+", a, b)
	case a.kind == String && b.kind == String:
		if a.markup || b.markup {
			return r.addMarkup(a, b)
		}
		if !r.chargeString(len(a.str) + len(b.str)) {
			return undefined
		}
		return StringValue(a.str + b.str)
	case a.kind == ListKind && b.kind == ListKind:
		x, y := a.list(), b.list()
		if x.seq == y.seq && x.seq <= tupleSeq && r.chargeItems(len(x.Items)+len(y.Items)) {
			items := make([]Value, 0, len(x.Items)+len(y.Items))
			return sequenceOf(x.seq, append(append(items, x.Items...), y.Items...))
		}
	}
	return r.failOperands("+", a, b)
}

// addMarkup adds two strings of which at least one is Markup. Like markupsafe it escapes the other one, so
// that the result is safe HTML.
func (r *run) addMarkup(a, b Value) Value {
	escaped := func(v Value) string {
		if v.markup {
			return v.str
		}
		return htmlEscape(v.str)
	}

	s := escaped(a) + escaped(b)
	r.chargeString(len(s))
	return Value{kind: String, str: s, markup: true}
}

// failOperands reports that Python has no operator op for the types of a and b. An undefined operand is
// reported as such instead.
func (r *run) failOperands(op string, a, b Value) Value {
	if r.failIfUndefined(a) || r.failIfUndefined(b) || r.err != nil {
		return undefined
	}
	return r.failf("unsupported operand type(s) for %s: '%s' and '%s'", op, a.typeName(), b.typeName())
}

// unarySign evaluates -v or +v.
func (r *run) unarySign(op string, v Value) Value {
	switch {
	case v.kind == Undefined:
		return r.failUndefined(v)
	case !v.isNumber():
		return r.failf("bad operand type for unary %s: '%s'", op, v.typeName())
	case op == "+" && v.kind == Bool:
		return IntValue(int(v.num))
	case op == "+":
		return v
	case v.kind == Float:
		return FloatValue(-v.float())
	}
	return bigValue(new(big.Int).Neg(v.big()))
}

// arith evaluates a op b for Python's arithmetic operators.
func (r *run) arith(op string, a, b Value) Value {
	switch {
	case op == "+" && !(a.isNumber() && b.isNumber()):
		return r.addValues(a, b)
	case op == "%" && a.kind == String:
		return r.percent(a.str, b)
	case op == "*" && !(a.isNumber() && b.isNumber()):
		return r.repeat(a, b)
	case !a.isNumber() || !b.isNumber():
		return r.failOperands(op, a, b)
	case a.kind == Float || b.kind == Float || op == "/":
		return r.floatArith(op, a, b)
	case a.isSmallInt() && b.isSmallInt():
		if v, ok := smallArith(op, a.int(), b.int()); ok {
			return v
		}
	}
	return r.bigArith(op, a.big(), b.big())
}

// smallArith evaluates a op b if the result cannot overflow 64 bits. It returns false otherwise, and then the
// caller uses big integers.
func smallArith(op string, a, b int64) (v Value, ok bool) {
	const safe = 1 << 31 // products of operands within ±safe fit into 64 bits

	if a < -safe || a > safe || b < -safe || b > safe {
		return undefined, false
	}

	switch op {
	case "+":
		return IntValue(int(a + b)), true
	case "-":
		return IntValue(int(a - b)), true
	case "*":
		return IntValue(int(a * b)), true
	}

	return undefined, false
}

// bigArith evaluates a op b for integers of any size. Its cost in steps grows with the size of the operands.
func (r *run) bigArith(op string, a, b *big.Int) Value {
	if !r.charge(1 + (a.BitLen()+b.BitLen())/16) {
		return undefined
	}
	out := new(big.Int)
	switch op {
	case "+":
		out.Add(a, b)
	case "-":
		out.Sub(a, b)
	case "*":
		out.Mul(a, b)
	case "//", "%":
		if b.Sign() == 0 {
			return r.failf("integer division or modulo by zero")
		}
		m := new(big.Int)
		out.DivMod(a, b, m)

		// Go's division is Euclidean: the remainder is never negative. Python rounds the quotient down, so that the
		// remainder has the sign of b.
		if b.Sign() < 0 && m.Sign() != 0 {
			out.Sub(out, big.NewInt(1))
			m.Add(m, b)
		}
		if op == "%" {
			out = m
		}
	case "**":
		return r.power(a, b)
	}

	if out.BitLen() > maxBits {
		return r.failf("integer is too large")
	}
	return bigValue(out)
}

// power evaluates a ** b for integers. It refuses a result of more than maxBits before it computes it.
func (r *run) power(a, b *big.Int) Value {
	if b.Sign() < 0 {
		return r.floatArith("**", bigValue(a), bigValue(b))
	}
	if a.BitLen() > 1 && (!b.IsInt64() || b.Int64()*int64(a.BitLen()-1) > maxBits) {
		return r.failf("integer is too large")
	}
	if !r.charge(maxBits / 16) {
		return undefined
	}

	// For the bases -1, 0 and 1 only the parity of b and whether it is zero matter. A small exponent that keeps
	// both replaces b, which may be huge.
	if a.BitLen() <= 1 {
		b = new(big.Int).And(b, big.NewInt(1)).Or(new(big.Int).And(b, big.NewInt(1)), big.NewInt(int64(2*b.Sign())))
	}
	return bigValue(new(big.Int).Exp(a, b, nil))
}

// floatArith evaluates a op b after conversion of both operands to floats.
func (r *run) floatArith(op string, a, b Value) Value {
	x, y := a.number(), b.number()
	switch op {
	case "+":
		return FloatValue(x + y)
	case "-":
		return FloatValue(x - y)
	case "*":
		return FloatValue(x * y)
	case "**":
		if x == 0 && y < 0 {
			return r.failf("0.0 cannot be raised to a negative power")
		}
		return FloatValue(math.Pow(x, y))
	}

	if y == 0 {
		return r.failf("division by zero")
	}
	if op == "/" {
		if a.kind != Float && b.kind != Float && (a.isBig() || b.isBig()) {
			if !r.charge(4 * (a.big().BitLen() + b.big().BitLen())) {
				return undefined
			}
			f, _ := new(big.Rat).SetFrac(a.big(), b.big()).Float64()
			return FloatValue(f)
		}
		return FloatValue(x / y)
	}

	// Go's remainder has the sign of x, and Python's has the sign of y.
	mod := math.Mod(x, y)
	if mod != 0 && (mod < 0) != (y < 0) {
		mod += y
	}

	if op == "%" {
		if mod == 0 {
			mod = math.Copysign(0, y)
		}
		return FloatValue(mod)
	}
	return FloatValue(math.Floor((x-mod)/y + 0.5))
}

// repeat evaluates the product of an integer and a string, list or tuple, in either order: "ab" * 3 is
// "ababab".
func (r *run) repeat(a, b Value) Value {
	if a.isSmallInt() {
		a, b = b, a
	}
	if !b.isSmallInt() {
		return r.failOperands("*", a, b)
	}

	n := max(0, b.int())
	switch {
	case a.kind == String:
		if len(a.str) > 0 && n > int64(r.lim.Output/len(a.str)) {
			return r.failf("template makes a string of more than %d bytes", r.lim.Output)
		}
		if !r.chargeString(len(a.str) * int(n)) {
			return undefined
		}
		return StringValue(strings.Repeat(a.str, int(n)))
	case a.kind == ListKind && a.list().seq <= tupleSeq:
		items := a.list().Items
		if len(items) > 0 && n > int64(r.steps/len(items)) || !r.chargeItems(len(items)*int(n)) {
			return r.failf("template takes too many steps")
		}
		out := make([]Value, 0, len(items)*int(n))
		for range n {
			out = append(out, items...)
		}
		return sequenceOf(a.list().seq, out)
	}

	return r.failOperands("*", a, b)
}
