package chattemplate

import (
	"fmt"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// tokenKind is the kind of a token.
type tokenKind uint8

const (
	dataToken     tokenKind = iota // text between tags
	beginVariable                  // {{
	endVariable                    // }}
	beginBlock                     // {%
	endBlock                       // %}
	nameToken
	stringToken // its text has no quotes, and its escapes are decoded
	intToken
	floatToken
	operator
	endOfSource
)

// token is the smallest unit of a template's source. line counts from 1.
type token struct {
	kind tokenKind
	text string
	line int
}

func (t token) String() string {
	switch t.kind {
	case endOfSource:
		return "end of template"
	case endVariable:
		return "}}"
	case endBlock:
		return "%}"
	}
	return t.text
}

// Error is the error of a template that Jinja would refuse too, or of a render in which Python would raise.
type Error struct {
	Line    int // 0 if it is not known
	Message string
}

func (e *Error) Error() string {
	if e.Line == 0 {
		return e.Message
	}
	return fmt.Sprintf("%s (line %d)", e.Message, e.Line)
}

// lexer cuts a source into tokens, as Jinja's lexer does with trim_blocks and lstrip_blocks set. A block
// drops the newline after it, and the white space before it if that begins the line.
type lexer struct {
	src string
	// at is the position of the next byte in src, and line is its line.
	at     int
	line   int
	tokens []token
	// lineStart is set if the token read last ended with a newline. White space up to the next tag then
	// begins a line, although the newline is not part of that text.
	lineStart bool
}

// lex returns all tokens of source. The last one is endOfSource.
func lex(source string) ([]token, error) {
	l := &lexer{src: normalizeNewlines(source), line: 1, lineStart: true}
	for l.at < len(l.src) {
		if err := l.lexText(); err != nil {
			return nil, err
		}
	}

	l.emit(endOfSource, "")
	return l.tokens, nil
}

// normalizeNewlines converts every newline to "\n" and drops one at the very end, as Jinja does with
// keep_trailing_newline off.
func normalizeNewlines(s string) string {
	if strings.Contains(s, "\r") {
		s = strings.ReplaceAll(strings.ReplaceAll(s, "\r\n", "\n"), "\r", "\n")
	}
	return strings.TrimSuffix(s, "\n")
}

// emit appends a token at the current line.
func (l *lexer) emit(kind tokenKind, text string) {
	l.tokens = append(l.tokens, token{kind, text, l.line})
}

// errorf returns an error at the current line.
func (l *lexer) errorf(format string, args ...any) error {
	return &Error{Line: l.line, Message: fmt.Sprintf(format, args...)}
}

// advance moves to position to and counts the lines passed.
func (l *lexer) advance(to int) {
	l.line += strings.Count(l.src[l.at:to], "\n")
	if to > l.at {
		l.lineStart = l.src[to-1] == '\n'
	}
	l.at = to
}

// skipSpace returns the position of the first byte from i on that is no white space.
func (l *lexer) skipSpace(i int) int {
	return len(l.src) - len(strings.TrimLeftFunc(l.src[i:], isSpace))
}

// operators lists the operators. Longer ones come first, because the first match wins.
var operators = []string{"//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}", ">", "<", "=",
	".", ":", "|", ",", ";"}

// lexTag reads the tokens of a tag and its end. The end is only recognized outside brackets, because "}}" may
// also close two dicts.
func (l *lexer) lexTag(block bool) error {
	var open []byte // the closing brackets that are still expected
	for {
		l.advance(l.skipSpace(l.at))
		if l.at >= len(l.src) {
			return l.errorf("unexpected end of template inside a tag")
		}
		if len(open) == 0 {
			if done := l.lexTagEnd(block); done {
				return nil
			}
		}
		if err := l.lexExpressionToken(&open); err != nil {
			return err
		}
	}
}

// lexTagEnd reads the end of a tag, and returns false if another token comes next.
func (l *lexer) lexTagEnd(block bool) bool {
	kind, end := endVariable, "}}"
	if block {
		kind, end = endBlock, "%}"
	}

	rest := l.src[l.at:]
	switch {
	case strings.HasPrefix(rest, end):
		to := l.at + 2
		if block {
			to = l.skipNewline(to)
		}
		l.emit(kind, end)
		l.advance(to)
	case strings.HasPrefix(rest, "-"+end):
		l.emit(kind, end)
		l.advance(l.skipSpace(l.at + 3))
	case block && strings.HasPrefix(rest, "+"+end):
		l.emit(kind, end)
		l.advance(l.at + 3)
	default:
		return false
	}

	return true
}

// numberPattern matches the integers and floats of Jinja's grammar.
var numberPattern = regexp.MustCompile(`^(?:0[bB](?:_?[01])+|0[oO](?:_?[0-7])+|0[xX](?:_?[\da-fA-F])+|(?:\d+_)*\d+(?:\.(?:\d+_)*\d+)?(?:[eE][+\-]?(?:\d+_)*\d+)?)`)

// lexExpressionToken reads one token of an expression. open holds the closing brackets that are still
// expected.
func (l *lexer) lexExpressionToken(open *[]byte) error {
	rest := l.src[l.at:]
	c := rest[0]
	switch {
	case c == '"' || c == '\'':
		return l.lexString(c)
	case c >= '0' && c <= '9':
		n := numberPattern.FindString(rest)
		if dot := strings.IndexByte(n, '.'); dot > 0 && l.src[l.at-1] == '.' {
			n = n[:dot] // in a.0.1 the text 0.1 is two members, not a float
		}
		kind := intToken
		if !strings.HasPrefix(n, "0x") && !strings.HasPrefix(n, "0X") && strings.ContainsAny(n, ".eE") {
			kind = floatToken
		}
		l.emit(kind, strings.ReplaceAll(n, "_", ""))
		l.advance(l.at + len(n))
		return nil
	case nameStart(rest):
		n := nameLength(rest)
		l.emit(nameToken, rest[:n])
		l.advance(l.at + n)
		return nil
	}

	for _, op := range operators {
		if strings.HasPrefix(rest, op) {
			return l.lexOperator(op, open)
		}
	}

	r, _ := utf8.DecodeRuneInString(rest)
	return l.errorf("unexpected char %q", r)
}

// nameStart reports whether s begins with a character that may begin a name.
func nameStart(s string) bool {
	r, _ := utf8.DecodeRuneInString(s)
	return r == '_' || unicode.IsLetter(r)
}

// nameLength returns the length of the name at the start of s.
func nameLength(s string) int {
	for i, r := range s {
		if r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r) && !unicode.IsMark(r) {
			return i
		}
	}
	return len(s)
}

// lexOperator reads op. It pushes the counterpart of an opening bracket to open, and checks a closing one
// against it.
func (l *lexer) lexOperator(op string, open *[]byte) error {
	switch op {
	case "(":
		*open = append(*open, ')')
	case "[":
		*open = append(*open, ']')
	case "{":
		*open = append(*open, '}')
	case ")", "]", "}":
		n := len(*open)
		if n == 0 {
			return l.errorf("unexpected '%s'", op)
		}
		if want := (*open)[n-1]; want != op[0] {
			return l.errorf("unexpected '%s', expected '%c'", op, want)
		}
		*open = (*open)[:n-1]
	}

	l.emit(operator, op)
	l.advance(l.at + len(op))
	return nil
}

// lexString reads a string literal and decodes its escapes.
func (l *lexer) lexString(quote byte) error {
	for i := l.at + 1; i < len(l.src); i++ {
		switch l.src[i] {
		case '\\':
			i++
		case quote:
			s, err := unescape(l.src[l.at+1 : i])
			if err != nil {
				return l.errorf("%v", err)
			}
			l.emit(stringToken, s)
			l.advance(i + 1)
			return nil
		}
	}
	return l.errorf("unexpected char %q", rune(quote))
}
