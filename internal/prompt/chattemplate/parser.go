package chattemplate

import "fmt"

// parser builds statements from tokens, with Jinja's grammar and precedence. After the first error it stands
// at the last token, so that every method returns soon.
type parser struct {
	tokens []token
	at     int
	// depth is the current depth of nesting, bounded by maxDepth.
	depth int
	// enclosingLoops counts the loops around the current statement. Without one, break and continue are
	// errors.
	enclosingLoops int
	err            *Error
}

// maxDepth bounds the nesting of a template. It protects the Go stack, because the parser is recursive.
const maxDepth = 200

// parse reads the source of a template.
func parse(source string) ([]statement, error) {
	tokens, err := lex(source)
	if err != nil {
		return nil, err
	}

	p := &parser{tokens: tokens}
	body := p.statements()
	if p.err == nil && p.current().kind != endOfSource {
		p.unexpected("")
	}
	if p.err != nil {
		return nil, p.err
	}
	return body, nil
}

// current returns the next token without reading it.
func (p *parser) current() token { return p.tokens[p.at] }

// peek returns the token after the next one.
func (p *parser) peek() token { return p.tokens[min(p.at+1, len(p.tokens)-1)] }

// advance reads the next token. At the end it returns the last token again.
func (p *parser) advance() token {
	t := p.tokens[p.at]
	if p.at < len(p.tokens)-1 {
		p.at++
	}
	return t
}

// errorf records the first error and moves to the end, where all loops stop.
func (p *parser) errorf(line int, format string, args ...any) {
	if p.err == nil {
		p.err = &Error{Line: line, Message: fmt.Sprintf(format, args...)}
	}
	p.at = len(p.tokens) - 1
}

// unexpected reports the next token as an error. wanted describes what is expected instead; it may be empty.
func (p *parser) unexpected(wanted string) {
	t := p.current()
	if wanted != "" {
		p.errorf(t.line, "expected %s, got '%s'", wanted, t)
		return
	}
	p.errorf(t.line, "unexpected '%s'", t)
}

// isOp reports whether the next token is the operator op.
func (p *parser) isOp(op string) bool { t := p.current(); return t.kind == operator && t.text == op }

// isName reports whether the next token is the name word.
func (p *parser) isName(word string) bool {
	t := p.current()
	return t.kind == nameToken && t.text == word
}

// acceptOp reads the operator op if it comes next.
func (p *parser) acceptOp(op string) bool {
	if p.isOp(op) {
		p.advance()
		return true
	}
	return false
}

// acceptName reads the name word if it comes next.
func (p *parser) acceptName(word string) bool {
	if p.isName(word) {
		p.advance()
		return true
	}
	return false
}

// expectOp reads the operator op, and fails if another token comes next.
func (p *parser) expectOp(op string) {
	if !p.acceptOp(op) {
		p.unexpected("'" + op + "'")
	}
}

// expect reads a token of a kind, and fails if another one comes next. what names the kind in the error.
func (p *parser) expect(kind tokenKind, what string) token {
	if p.current().kind != kind {
		p.unexpected(what)
	}
	return p.advance()
}

// enterNesting enters one level of nesting, and fails beyond maxDepth. The caller must call leaveNesting.
func (p *parser) enterNesting() bool {
	p.depth++
	if p.depth > maxDepth {
		p.errorf(p.current().line, "template is nested too deeply")
		return false
	}
	return true
}

// leaveNesting leaves a level of nesting.
func (p *parser) leaveNesting() { p.depth-- }
