package chattemplate

import (
	"math/big"
	"slices"
	"strconv"
)

// The methods of this file and of postfix.go read expressions by recursive descent, one method for each level of precedence.
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
