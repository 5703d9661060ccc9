package chattemplate

import (
	"math/big"
	"slices"
	"strconv"
)

// Precedence, weakest first: if-else, or, and, not, comparisons, + -, ~, * / // %, **, unary,
// then postfix, filters and tests.

func (p *parser) expr() expression {
	if !p.enterNesting() {
		return nil
	}
	defer p.leaveNesting()

	e := p.or()
	for p.err == nil && p.acceptName("if") {
		c := conditional{test: p.or(), then: e}
		if p.acceptName("else") {
			c.els = p.expr()
		}
		e = c
	}
	return e
}

func (p *parser) or() expression {
	e := p.and()
	for p.err == nil && p.acceptName("or") {
		e = binary{"or", e, p.and()}
	}
	return e
}

func (p *parser) and() expression {
	e := p.not()
	for p.err == nil && p.acceptName("and") {
		e = binary{"and", e, p.not()}
	}
	return e
}

func (p *parser) not() expression {
	if !p.enterNesting() {
		return nil
	}
	defer p.leaveNesting()
	if p.acceptName("not") {
		return unary{"not", p.not()}
	}
	return p.comparison()
}

var comparisons = []string{"==", "!=", "<", "<=", ">", ">="}

func (p *parser) comparison() expression {
	c := compare{first: p.sum()}
	for p.err == nil {
		op := ""
		switch t := p.current(); {
		case t.kind == operator && slices.Contains(comparisons, t.text):
			op = t.text
		case p.isName("in"):
			op = "in"
		case p.isName("not") && p.peek().kind == nameToken && p.peek().text == "in":
			p.advance()
			op = "not in"
		}
		if op == "" {
			break
		}
		p.advance()
		c.ops, c.rest = append(c.ops, op), append(c.rest, p.sum())
	}

	if len(c.ops) == 0 {
		return c.first
	}
	return c
}

// leftAssociative reads operands with left-associative operators between.
func (p *parser) leftAssociative(operand func() expression, ops ...string) expression {
	e := operand()
	for p.err == nil && p.current().kind == operator && slices.Contains(ops, p.current().text) {
		e = binary{p.advance().text, e, operand()}
	}
	return e
}

func (p *parser) sum() expression { return p.leftAssociative(p.concat, "+", "-") }

func (p *parser) concat() expression {
	parts := []expression{p.product()}
	for p.err == nil && p.acceptOp("~") {
		parts = append(parts, p.product())
	}
	if len(parts) == 1 {
		return parts[0]
	}
	return concat{parts}
}

func (p *parser) product() expression { return p.leftAssociative(p.power, "*", "/", "//", "%") }

// power is left-associative in Jinja.
func (p *parser) power() expression {
	return p.leftAssociative(func() expression { return p.unary(true) }, "**")
}

func (p *parser) unary(filters bool) expression {
	if !p.enterNesting() {
		return nil
	}
	defer p.leaveNesting()

	var e expression
	switch {
	case p.acceptOp("-"):
		e = unary{"-", p.unary(false)}
	case p.acceptOp("+"):
		e = unary{"+", p.unary(false)}
	default:
		e = p.primary()
	}

	e = p.postfix(e)
	if filters {
		e = p.filtersAndTests(e)
	}
	return e
}

var constants = map[string]Value{"true": trueValue, "True": trueValue, "false": falseValue, "False": falseValue, "none": none, "None": none}

func (p *parser) primary() expression {
	t := p.current()
	switch {
	case t.kind == nameToken:
		p.advance()
		if v, ok := constants[t.text]; ok {
			return constant{v}
		}
		return name{t.text}
	case t.kind == stringToken:
		s := p.advance().text
		for p.current().kind == stringToken { // adjacent strings are one
			s += p.advance().text
		}
		return constant{StringValue(s)}
	case t.kind == intToken:
		return constant{p.integer(p.advance())}
	case t.kind == floatToken:
		f, _ := strconv.ParseFloat(p.advance().text, 64)
		return constant{FloatValue(f)}
	case p.acceptOp("("):
		e := p.parenthesized()
		p.expectOp(")")
		return e
	case p.acceptOp("["):
		return listLit{p.listItems("]")}
	case p.acceptOp("{"):
		return p.dict()
	}

	p.unexpected("")
	return nil
}

func (p *parser) integer(t token) Value {
	i, ok := new(big.Int).SetString(t.text, 0)
	if !ok || len(t.text) > 4300 { // Python's own bound on digits
		p.errorf(t.line, "invalid integer")
		return none
	}
	return bigValue(i)
}

// parenthesized reads what stands between parentheses: an expression or a tuple.
func (p *parser) parenthesized() expression {
	if p.isOp(")") {
		return tupleLit{}
	}
	return p.exprOrTuple(true)
}

// exprOrTuple reads an expression or, with commas, a tuple. conditionals says whether "a if b" may
// stand there; a name among ends ends it.
func (p *parser) exprOrTuple(conditionals bool, ends ...string) expression {
	one := p.expr
	if !conditionals {
		one = p.or
	}

	first := one()
	if !p.isOp(",") {
		return first
	}

	items := []expression{first}
	for p.err == nil && p.acceptOp(",") {
		if t := p.current(); t.kind == endVariable || t.kind == endBlock || p.isOp(")") || t.kind == nameToken &&
			slices.Contains(ends, t.text) {
			break
		}
		items = append(items, one())
	}
	return tupleLit{items}
}

func (p *parser) listItems(end string) (items []expression) {
	for p.err == nil && !p.isOp(end) {
		if len(items) > 0 {
			p.expectOp(",")
			if p.isOp(end) {
				break
			}
		}
		items = append(items, p.expr())
	}

	p.expectOp(end)
	return items
}

func (p *parser) dict() expression {
	var d dictLit
	for p.err == nil && !p.isOp("}") {
		if len(d.keys) > 0 {
			p.expectOp(",")
			if p.isOp("}") {
				break
			}
		}
		d.keys = append(d.keys, p.expr())
		p.expectOp(":")
		d.values = append(d.values, p.expr())
	}

	p.expectOp("}")
	return d
}

func (p *parser) postfix(e expression) expression {
	for n := 0; p.err == nil; n++ {
		switch {
		case p.isOp(".") || p.isOp("["):
			e = p.member(e)
		case p.isOp("("):
			line := p.current().line
			e = call{e, p.arguments(), line}
		default:
			return e
		}
		if n > 2*maxDepth {
			p.errorf(p.current().line, "template is nested too deeply")
		}
	}
	return e
}

func (p *parser) filtersAndTests(e expression) expression {
	for n := 0; p.err == nil; n++ {
		switch {
		case p.acceptOp("|"):
			e = p.filterCall(e)
		case p.acceptName("is"):
			e = p.test(e)
		case p.isOp("("):
			line := p.current().line
			e = call{e, p.arguments(), line}
		default:
			return e
		}
		if n > 2*maxDepth {
			p.errorf(p.current().line, "template is nested too deeply")
		}
	}
	return e
}

// member reads .name, .0 or [index].
func (p *parser) member(e expression) expression {
	if p.acceptOp(".") {
		switch t := p.advance(); t.kind {
		case nameToken:
			return attribute{e, t.text}
		case intToken:
			return subscript{e, constant{p.integer(t)}}
		default:
			p.errorf(t.line, "expected name or number")
			return nil
		}
	}

	p.expectOp("[")
	var items []expression
	for p.err == nil && !p.isOp("]") {
		if len(items) > 0 {
			p.expectOp(",")
		}
		items = append(items, p.indexOrSlice(e))
	}

	p.expectOp("]")
	switch {
	case len(items) == 0:
		p.errorf(p.current().line, "expected an index")
		return nil
	case len(items) > 1:
		return subscript{e, tupleLit{items}}
	}

	if s, ok := items[0].(slice); ok {
		return s
	}
	return subscript{e, items[0]}
}

func (p *parser) indexOrSlice(of expression) expression {
	var parts [3]expression
	n := 0
	for ; n < 3; n++ {
		if !p.isOp(":") && !p.isOp("]") && !p.isOp(",") {
			parts[n] = p.expr()
		}
		if n == 2 || !p.acceptOp(":") {
			break
		}
	}

	if n == 0 {
		return parts[0]
	}
	return slice{of, parts[0], parts[1], parts[2]}
}

func (p *parser) filterCall(of expression) filterExpr {
	t := p.expect(nameToken, "name of a filter")
	f := filterExpr{of: of, name: p.dottedName(t.text), line: t.line}
	if p.isOp("(") {
		f.args = p.arguments()
	}
	return f
}

func (p *parser) dottedName(s string) string {
	for p.acceptOp(".") {
		s += "." + p.expect(nameToken, "name").text
	}
	return s
}

// test reads what follows "is". A test's one argument may stand without parentheses.
func (p *parser) test(of expression) expression {
	negated := p.acceptName("not")
	t := p.expect(nameToken, "name of a test")
	e := testExpr{of: of, name: p.dottedName(t.text), line: t.line}
	switch c := p.current(); {
	case p.isOp("("):
		e.args = p.arguments()
	case c.kind == stringToken, c.kind == intToken, c.kind == floatToken, p.isOp("["), p.isOp("{"),
		c.kind == nameToken && c.text != "else" && c.text != "or" && c.text != "and":
		if c.kind == nameToken && c.text == "is" {
			p.errorf(c.line, "You cannot chain multiple tests with is")
			return nil
		}
		e.args.positional = []expression{p.postfix(p.primary())}
	}

	if negated {
		return unary{"not", e}
	}
	return e
}

func (p *parser) arguments() (a callArgs) {
	p.expectOp("(")
	for first := true; p.err == nil && !p.isOp(")"); first = false {
		if !first {
			p.expectOp(",")
			if p.isOp(")") {
				break
			}
		}
		switch {
		case p.acceptOp("*"):
			a.star = p.expr()
		case p.acceptOp("**"):
			a.dict = p.expr()
		case p.current().kind == nameToken && p.peek().kind == operator && p.peek().text == "=":
			a.names = append(a.names, p.advance().text)
			p.advance()
			a.named = append(a.named, p.expr())
		case len(a.names) > 0 || a.dict != nil || a.star != nil:
			p.errorf(p.current().line, "invalid syntax for function call expression")
		default:
			a.positional = append(a.positional, p.expr())
		}
	}

	p.expectOp(")")
	return a
}
