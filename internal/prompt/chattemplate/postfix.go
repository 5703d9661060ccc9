package chattemplate

// postfix reads the attributes, subscripts and calls that follow e.
func (p *parser) postfix(e expression) expression {
	return p.follow(e, func(e expression) expression {
		if p.isOp(".") || p.isOp("[") {
			return p.member(e)
		}
		return nil
	})
}

// filtersAndTests reads the filters, tests and calls that follow e.
func (p *parser) filtersAndTests(e expression) expression {
	return p.follow(e, func(e expression) expression {
		switch {
		case p.acceptOp("|"):
			return p.filterCall(e)
		case p.acceptName("is"):
			return p.test(e)
		}
		return nil
	})
}

// follow reads what follows e: calls, and what next reads, which returns nil for anything else.
func (p *parser) follow(e expression, next func(expression) expression) expression {
	for n := 0; p.err == nil; n++ {
		longer := next(e)
		if longer == nil && p.isOp("(") {
			line := p.current().line
			longer = call{e, p.arguments(), line}
		}
		if longer == nil {
			return e
		}
		e = longer
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
