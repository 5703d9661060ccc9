package chattemplate

import "slices"

// statements reads statements up to the end of the template or a tag whose name is in ends. The name of that
// tag is not read.
func (p *parser) statements(ends ...string) []statement {
	var body []statement
	if !p.enterNesting() {
		return nil
	}

	defer p.leaveNesting()
	for p.err == nil {
		switch t := p.current(); t.kind {
		case dataToken:
			body = append(body, output{text: t.text, line: t.line})
			p.advance()
		case beginVariable:
			p.advance()
			of := p.exprOrTuple(true)
			p.expect(endVariable, "end of print statement")
			body = append(body, output{of: of, line: t.line})
		case beginBlock:
			p.advance()
			word := p.current()
			if word.kind != nameToken {
				p.unexpected("tag name")
				return nil
			}
			if slices.Contains(ends, word.text) {
				return body
			}
			p.advance()
			body = append(body, p.statement(word)...)
		default:
			if len(ends) > 0 {
				p.errorf(t.line, "unexpected end of template; was looking for '%s'", ends[len(ends)-1])
			}
			return body
		}
	}

	return body
}

// block reads the end of a tag, a body, and the name of the tag that ends the body.
func (p *parser) block(ends ...string) (body []statement, end string) {
	p.expect(endBlock, "end of statement block")
	body = p.statements(ends...)
	return body, p.advance().text
}

// expectBlockEnd reads the end of a block tag.
func (p *parser) expectBlockEnd() { p.expect(endBlock, "end of statement block") }

// statement reads the statement whose tag has the name word.
func (p *parser) statement(word token) []statement {
	one := func(s statement) []statement { return []statement{s} }
	switch word.text {
	case "if":
		return one(p.ifStatement(word.line))
	case "for":
		return one(p.forStatement(word.line))
	case "set":
		return one(p.setStatement(word.line))
	case "macro":
		name := p.expect(nameToken, "name of the macro").text
		return one(p.macro(name))
	case "call":
		return one(p.callBlock(word.line))
	case "filter":
		f := p.filters()
		body, _ := p.block("endfilter")
		p.expectBlockEnd()
		return one(filterBlock{f, body, word.line})
	case "with":
		return one(p.withStatement())
	case "generation":
		loops := p.enclosingLoops
		p.enclosingLoops = 0
		body, _ := p.block("endgeneration")
		p.enclosingLoops = loops
		p.expectBlockEnd()
		return one(scopeStmt{body})
	case "break", "continue":
		if p.enclosingLoops == 0 {
			p.errorf(word.line, "'%s' outside loop", word.text)
		}
		p.expectBlockEnd()
		return one(jump{map[string]signal{"break": breakLoop, "continue": continueLoop}[word.text]})
	case "do":
		of := p.exprOrTuple(true)
		p.expectBlockEnd()
		return one(doStmt{of})
	case "print":
		return p.print(word.line)
	}

	p.errorf(word.line, "encountered unknown tag '%s'", word.text)
	return nil
}

// print reads the expressions of {% print %}.
func (p *parser) print(line int) (out []statement) {
	for p.err == nil && p.current().kind != endBlock {
		if len(out) > 0 {
			p.expectOp(",")
		}
		out = append(out, output{of: p.expr(), line: line})
	}

	p.expectBlockEnd()
	return out
}

// ifStatement reads {% if %} up to endif.
func (p *parser) ifStatement(line int) statement {
	s := ifStmt{line: line}
	for p.err == nil {
		s.tests = append(s.tests, p.exprOrTuple(false))
		body, end := p.block("elif", "else", "endif")
		s.bodies = append(s.bodies, body)
		switch end {
		case "elif":
			continue
		case "else":
			s.els, _ = p.block("endif")
		}
		break
	}

	p.expectBlockEnd()
	return s
}

// forStatement reads {% for %} up to endfor.
func (p *parser) forStatement(line int) statement {
	s := forStmt{line: line, target: p.target("in", false)}
	if !p.acceptName("in") {
		p.unexpected("'in'")
	}

	s.iter = p.exprOrTuple(false, "recursive")
	if p.acceptName("if") {
		s.filter = p.expr()
	}

	s.recursive = p.acceptName("recursive")
	p.enclosingLoops++
	body, end := p.block("endfor", "else")
	p.enclosingLoops--
	s.body = body
	if end == "else" {
		s.els, _ = p.block("endfor")
	}

	p.expectBlockEnd()
	return s
}

// setStatement reads {% set %}, with "=" and a value or with a body up to endset.
func (p *parser) setStatement(line int) statement {
	t := p.target("", true)
	if p.acceptOp("=") {
		value := p.exprOrTuple(true)
		p.expectBlockEnd()
		return setStmt{t, value, line}
	}

	var filters []filterExpr
	if p.isOp("|") {
		filters = p.filters()
	}

	body, _ := p.block("endset")
	p.expectBlockEnd()
	return setBlock{t, filters, body, line}
}

// filters reads a chain of filters, name(args) | name …, of a block.
func (p *parser) filters() (chain []filterExpr) {
	p.acceptOp("|")
	for p.err == nil {
		chain = append(chain, p.filterCall(nil))
		if !p.acceptOp("|") {
			break
		}
	}
	return chain
}

// target reads the left side of an assignment. A name equal to end ends it, and attrs allows attributes of a
// namespace. Several targets, separated by commas, make a tuple.
func (p *parser) target(end string, attrs bool) target {
	var parts []target
	comma := false
	for p.err == nil {
		if len(parts) > 0 && (end != "" && p.isName(end) || p.isOp("=") || p.current().kind == endBlock || p.isOp(")")) {
			break // the last comma was a trailing one
		}
		parts = append(parts, p.singleTarget(end, attrs))
		if !p.acceptOp(",") {
			break
		}
		comma = true
	}

	if len(parts) == 1 && !comma {
		return parts[0]
	}
	return target{tuple: parts}
}

// singleTarget reads one target, or several in parentheses.
func (p *parser) singleTarget(end string, attrs bool) target {
	if !p.enterNesting() {
		return target{}
	}
	defer p.leaveNesting()

	if p.acceptOp("(") {
		t := p.target(end, false)
		p.expectOp(")")
		return t
	}

	t := p.expect(nameToken, "name")
	if slices.Contains([]string{"true", "false", "none", "True", "False", "None"}, t.text) {
		p.errorf(t.line, "can't assign to '%s'", t.text)
	}

	out := target{name: t.text}
	if attrs && p.acceptOp(".") {
		out.attr = p.expect(nameToken, "name").text
	}
	return out
}

// macro reads a macro up to endmacro.
func (p *parser) macro(name string) *macroStmt {
	m := &macroStmt{name: name}
	p.expectOp("(")
	p.signature(m)
	p.macroBody(m, "endmacro")
	return m
}

// macroBody reads the body of a macro up to the tag end. Loops around the macro do not count inside it.
func (p *parser) macroBody(m *macroStmt, end string) {
	loops := p.enclosingLoops
	p.enclosingLoops = 0
	m.body, _ = p.block(end)
	p.enclosingLoops = loops
	p.expectBlockEnd()
}

// signature reads the parameters of a macro and the closing parenthesis.
func (p *parser) signature(m *macroStmt) {
	for p.err == nil && !p.isOp(")") {
		if len(m.params) > 0 {
			p.expectOp(",")
		}
		m.params = append(m.params, p.expect(nameToken, "name").text)
		if p.acceptOp("=") {
			m.defaults = append(m.defaults, p.expr())
		} else if len(m.defaults) > 0 {
			p.errorf(p.current().line, "non-default argument follows default argument")
		}
	}
	p.expectOp(")")
}

// callBlock reads {% call %} up to endcall. Its body becomes a macro named caller.
func (p *parser) callBlock(line int) statement {
	m := &macroStmt{name: "caller"}
	if p.acceptOp("(") {
		p.signature(m)
	}

	of := p.expr()
	if _, ok := of.(call); !ok {
		p.errorf(line, "expected call")
	}

	p.macroBody(m, "endcall")
	return callBlock{of, m, line}
}

// withStatement reads {% with %} up to endwith.
func (p *parser) withStatement() statement {
	var s withStmt
	for p.err == nil && p.current().kind != endBlock {
		if len(s.targets) > 0 {
			p.expectOp(",")
		}
		s.targets = append(s.targets, p.singleTarget("", false))
		p.expectOp("=")
		s.values = append(s.values, p.expr())
	}

	s.body, _ = p.block("endwith")
	p.expectBlockEnd()
	return s
}
