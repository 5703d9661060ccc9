package chattemplate

import (
	"math/big"
	"slices"
	"strconv"
)

// The methods of this file read expressions by recursive descent, one method for each level of precedence.
// The levels of Jinja, weakest first, are: if-else, or, and, not, comparisons, + and -, ~, * / // and %, **,
// unary operators, postfix operators, filters and tests.

// expr reads an expression of any kind: a value, perhaps followed by if and else.
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

// or reads operands of or.
func (p *parser) or() expression {
	e := p.and()
	for p.err == nil && p.acceptName("or") {
		e = binary{"or", e, p.and()}
	}
	return e
}

// and reads operands of and.
func (p *parser) and() expression {
	e := p.not()
	for p.err == nil && p.acceptName("and") {
		e = binary{"and", e, p.not()}
	}
	return e
}

// not reads an operand of and, perhaps negated.
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

// comparisons lists the comparison operators, apart from in and not in.
var comparisons = []string{"==", "!=", "<", "<=", ">", ">="}

// comparison reads a chain of comparisons, such as a < b <= c.
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

// leftAssociative reads operands that are joined by any of ops. It groups them from the left.
func (p *parser) leftAssociative(operand func() expression, ops ...string) expression {
	e := operand()
	for p.err == nil && p.current().kind == operator && slices.Contains(ops, p.current().text) {
		e = binary{p.advance().text, e, operand()}
	}
	return e
}

// sum reads operands of + and -.
func (p *parser) sum() expression { return p.leftAssociative(p.concat, "+", "-") }

// concat reads operands of ~.
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

// product reads operands of *, /, // and %.
func (p *parser) product() expression { return p.leftAssociative(p.power, "*", "/", "//", "%") }

// power reads operands of **. In Jinja it groups from the left, unlike in Python.
func (p *parser) power() expression {
	return p.leftAssociative(func() expression { return p.unary(true) }, "**")
}

// unary reads an operand with its signs, postfix operators and, if filters is true, filters and tests. In
// Jinja a filter applies to the negated value: -1|abs is 1.
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

// constants holds the names that are constants.
var constants = map[string]Value{"true": trueValue, "True": trueValue, "false": falseValue, "False": falseValue, "none": none, "None": none}

// primary reads a name, a literal, or an expression in parentheses.
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
		for p.current().kind == stringToken { // adjacent literals are joined, as in Python
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

// integer converts an integer literal, which may have a prefix of its base.
func (p *parser) integer(t token) Value {
	i, ok := new(big.Int).SetString(t.text, 0)
	if !ok || len(t.text) > maxDigits {
		p.errorf(t.line, "invalid integer")
		return none
	}
	return bigValue(i)
}

// parenthesized reads an expression or a tuple after an opening parenthesis.
func (p *parser) parenthesized() expression {
	if p.isOp(")") {
		return tupleLit{}
	}
	return p.exprOrTuple(true)
}

// exprOrTuple reads an expression, or a tuple if commas follow. conditionals allows "a if b" as an element.
// After a comma, a name in ends ends the tuple.
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

// listItems reads expressions, separated by commas, and the bracket end.
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

// dict reads the entries of a dict literal and the closing brace.
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

// postfix reads the members, indexes and calls that follow e.
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

// filtersAndTests reads the filters, tests and calls that follow e.
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

// member reads one of .name, .0 and [index] after e.
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

// indexOrSlice reads one element between brackets: an index or start:stop:step.
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

// filterCall reads the name and the arguments of a filter.
func (p *parser) filterCall(of expression) filterExpr {
	t := p.expect(nameToken, "name of a filter")
	f := filterExpr{of: of, name: p.dottedName(t.text), line: t.line}
	if p.isOp("(") {
		f.args = p.arguments()
	}
	return f
}

// dottedName reads the rest of a name with points, such as a.b.
func (p *parser) dottedName(s string) string {
	for p.acceptOp(".") {
		s += "." + p.expect(nameToken, "name").text
	}
	return s
}

// test reads the test that follows "is". Its only argument may stand without parentheses.
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

// arguments reads the arguments of a call, with both parentheses.
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
