package chattemplate

import (
	"regexp"
	"strings"
)

// rawTag matches the beginning of a raw block. The optional signs control white space.
var rawTag = regexp.MustCompile(`^\{%[-+]?\s*raw\s*(-%\}\s*|%\})`)

// endRawTag matches the end of a raw block. Like every block tag it drops the newline after it.
var endRawTag = regexp.MustCompile(`\{%[-+]?\s*endraw\s*(\+%\}|-%\}\s*|%\}\n?)`)

// lexText reads the text up to the next tag, and then the whole tag.
func (l *lexer) lexText() error {
	rest := l.src[l.at:]
	i := nextTag(rest)
	if i < 0 {
		l.emit(dataToken, rest)
		l.advance(len(l.src))
		return nil
	}

	tag := rest[i : i+2]
	sign := byte(0)
	if i+2 < len(rest) && (rest[i+2] == '-' || rest[i+2] == '+') {
		sign = rest[i+2]
	}
	if data := l.trimBeforeTag(rest[:i], sign, tag != "{{"); data != "" {
		l.emit(dataToken, data)
	}

	l.advance(l.at + i)
	if m := rawTag.FindString(rest[i:]); m != "" {
		return l.lexRawBlock(len(m))
	}

	skip := 2
	if sign != 0 {
		skip = 3
	}

	switch tag {
	case "{#":
		return l.skipComment()
	case "{{":
		l.emit(beginVariable, tag)
	default:
		l.emit(beginBlock, tag)
	}

	l.advance(l.at + skip)
	return l.lexTag(tag == "{%")
}

// nextTag returns the position of the next {{, {% or {#, or -1 if there is none.
func nextTag(s string) int {
	for i := 0; ; i++ {
		k := strings.IndexByte(s[i:], '{')
		if k < 0 || i+k+1 >= len(s) {
			return -1
		}
		i += k
		if s[i+1] == '{' || s[i+1] == '%' || s[i+1] == '#' {
			return i
		}
	}
}

// trimBeforeTag removes from data the white space that the tag after it strips. sign is the sign of that tag,
// or 0. The sign - strips all white space, and + strips none. Without a sign, strips selects lstrip_blocks.
func (l *lexer) trimBeforeTag(data string, sign byte, strips bool) string {
	if sign == '-' {
		return strings.TrimRightFunc(data, isSpace)
	}
	if sign == '+' || !strips {
		return data
	}

	// Strip the last line of data if it holds only white space and begins a line of the source.
	line := strings.LastIndexByte(data, '\n') + 1
	if line == 0 && !l.lineStart {
		return data
	}
	if strings.TrimLeftFunc(data[line:], isSpace) == "" {
		return data[:line]
	}
	return data
}

// skipComment skips a comment, and the white space after it as its sign demands.
func (l *lexer) skipComment() error {
	end := strings.Index(l.src[l.at+2:], "#}")
	if end < 0 {
		return l.errorf("missing end of comment tag")
	}

	end += l.at + 2
	to := end + 2
	switch l.src[end-1] {
	case '-':
		to = l.skipSpace(to)
	case '+':
	default:
		to = l.skipNewline(to)
	}

	l.advance(to)
	return nil
}

// skipNewline returns the position after a newline at i, or i if there is none.
func (l *lexer) skipNewline(i int) int {
	if i < len(l.src) && l.src[i] == '\n' {
		i++
	}
	return i
}

// lexRawBlock reads a raw block, whose text is emitted as it stands. opening is the length of its first tag.
func (l *lexer) lexRawBlock(opening int) error {
	l.advance(l.at + opening)
	m := endRawTag.FindStringIndex(l.src[l.at:])
	if m == nil {
		return l.errorf("missing end of raw directive")
	}

	tag := l.src[l.at+m[0] : l.at+m[1]]
	sign := byte(0)
	if tag[2] == '-' || tag[2] == '+' {
		sign = tag[2]
	}
	if data := l.trimBeforeTag(l.src[l.at:l.at+m[0]], sign, true); data != "" {
		l.emit(dataToken, data)
	}

	l.advance(l.at + m[1])
	return nil
}
