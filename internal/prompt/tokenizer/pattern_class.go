package tokenizer

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// readClass reads a bracket expression after its opening bracket.
func (r *patternReader) readClass(depth int) (runs, error) {
	if depth > maxDepth {
		return nil, errors.New("it is nested too deeply")
	}

	negated := r.accept("^")
	var s, intersection runs // the current operand of &&, and the operands before it
	intersect := false
	for first := true; ; first = false {
		switch {
		case r.at >= len(r.src):
			return nil, errors.New("unmatched [")
		case r.peek() == ']' && first:
			return nil, errors.New("a ] that begins a class")
		case r.accept("]"):
			if intersect {
				s = intersection.and(s)
			}
			if negated {
				s = s.not()
			}
			return s, nil
		case r.accept("&&"):
			if intersect {
				s = intersection.and(s)
			}
			intersection = s
			s = nil
			intersect = true
			continue
		}

		more, err := r.readMember(depth)
		if err != nil {
			return nil, err
		}
		s = s.or(more)
	}
}

// readMember reads a character, a range or a class inside brackets.
func (r *patternReader) readMember(depth int) (runs, error) {
	if strings.HasPrefix(r.src[r.at:], "[:") {
		return nil, errors.New("a class by name, like [:alpha:]")
	}
	if r.accept("[") {
		return r.readClass(depth + 1)
	}

	s, single, err := r.readElement()
	if err != nil || r.peek() != '-' || strings.HasPrefix(r.src[r.at:], "-]") {
		return s, err
	}
	if !single {
		return nil, errors.New("a range that begins with a class")
	}
	if s[0][0] == '-' {
		return nil, errors.New("a - beside a -")
	}

	r.at++
	if r.peek() == '[' {
		return nil, errors.New("a range that ends with a class")
	}

	t, single, err := r.readElement()
	if err != nil {
		return nil, err
	}
	if !single || t[0][0] < s[0][0] || s[0][0] < surrogateMin && t[0][0] > surrogateMax {
		return nil, errors.New("a range that does not go from a character to a later one")
	}
	return runs{{s[0][0], t[0][0]}}, nil
}

// readElement reads one character or escape. Single is set if it is one character.
func (r *patternReader) readElement() (s runs, single bool, err error) {
	if r.peek() == '\\' {
		return r.readEscape()
	}
	c, err := r.readRune()
	return runs{{c, c}}, true, err
}

// controlEscapes maps the letter after a backslash to its control character.
var controlEscapes = map[byte]rune{'n': '\n', 'r': '\r', 't': '\t', 'v': '\v', 'f': '\f', 'a': 7, 'e': 27}

// readEscape reads an escape from its backslash on. Single is set if it is one character.
func (r *patternReader) readEscape() (s runs, single bool, err error) {
	r.at++
	c := r.peek()
	if control, ok := controlEscapes[c]; ok {
		r.at++
		return runs{{control, control}}, true, nil
	}

	switch c {
	case 'p', 'P':
		s, err = r.readProperty()
		return s, false, err
	case 's', 'S', 'd', 'D', 'w', 'W':
		r.at++
		s = shorthand(c | 0x20)
		if c < 'a' {
			s = s.not()
		}
		return s, false, nil
	case 'x', 'u':
		r.at++
		char, err := r.readHex(c)
		return runs{{char, char}}, true, err
	}

	if c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'z' || c >= utf8.RuneSelf || c == 0 {
		return nil, false, fmt.Errorf("\\%c is not supported", c)
	}

	r.at++
	return runs{{rune(c), rune(c)}}, true, nil
}

// shorthand returns the characters of \s, \d or \w in Oniguruma.
func shorthand(c byte) (s runs) {
	switch c {
	case 's':
		for _, r := range spaces {
			s = append(s, [2]rune{r, r})
		}
		return s.merged()
	case 'd':
		return categoryRunsOf("Nd")
	}

	s = categoryRunsOf("L").or(categoryRunsOf("M")).or(categoryRunsOf("Nd")).or(categoryRunsOf("Pc"))
	return s.xor(oniguWord[:])
}

// readHex reads the digits of \xHH, \x{H…} or \uHHHH. It refuses \xHH above 7F, which is a byte and not a
// character.
func (r *patternReader) readHex(kind byte) (rune, error) {
	digits := 4
	if kind == 'x' {
		digits = 2
		if r.accept("{") {
			digits = strings.IndexByte(r.src[r.at:], '}')
		}
	}

	if digits < 1 || digits > 8 || r.at+digits > len(r.src) {
		return 0, errors.New("an unfinished \\x or \\u")
	}

	v, err := strconv.ParseUint(r.src[r.at:r.at+digits], 16, 32)
	r.at += digits
	braces := kind == 'x' && r.accept("}")
	if err != nil || !utf8.ValidRune(rune(v)) || v > utf8.MaxRune || kind == 'x' && !braces && v >= utf8.RuneSelf {
		return 0, errors.New("a \\x or \\u that does not stand for a character")
	}
	return rune(v), nil
}

// readProperty reads \p{Name}, \p{^Name} or \P{Name} from its letter p on.
func (r *patternReader) readProperty() (runs, error) {
	negated := r.peek() == 'P'
	r.at++
	end := strings.IndexByte(r.src[r.at:], '}')
	if r.peek() != '{' || end < 0 {
		return nil, errors.New("a \\p without braces")
	}

	name := r.src[r.at+1 : r.at+end]
	r.at += end + 1
	name, caret := strings.CutPrefix(name, "^")
	negated = negated != caret
	s, ok := propertyRuns(strings.NewReplacer(" ", "", "_", "", "-", "").Replace(strings.ToLower(name)))
	if !ok {
		return nil, fmt.Errorf("\\p{%s} is not supported", name)
	}
	if negated {
		s = s.not()
	}
	return s, nil
}

// longCategories maps the long names of categories to their short names.
var longCategories = map[string]string{
	"letter": "L", "mark": "M", "number": "N", "punctuation": "P", "symbol": "S", "separator": "Z", "uppercaseletter": "Lu",
	"lowercaseletter": "Ll", "titlecaseletter": "Lt", "modifierletter": "Lm", "otherletter": "Lo", "nonspacingmark": "Mn",
	"spacingmark": "Mc", "enclosingmark": "Me", "decimalnumber": "Nd", "letternumber": "Nl", "othernumber": "No",
}

// propertyRuns returns the characters of a property. The name is in lower case without spaces, _ and -.
func propertyRuns(name string) (s runs, ok bool) {
	if long, ok := longCategories[name]; ok {
		return categoryRunsOf(long), true
	}
	switch name {
	case "any":
		return everything(), true
	case "l", "m", "n", "p", "s", "z":
		return categoryRunsOf(strings.ToUpper(name)), true
	}

	for i := 0; i < len(categoryNames); i += 2 {
		if strings.EqualFold(name, categoryNames[i:i+2]) {
			return categoryRunsOf(categoryNames[i : i+2]), true
		}
	}

	script, ok := scriptRuns[name]
	return script, ok
}

// manyFolds are the pairs of letters that match one character when case is ignored (ß, ﬁ, …).
var manyFolds = []string{"ss", "ff", "fi", "fl", "st"}

var errFold = errors.New("a character beyond ASCII, or ss, ff, fi, fl or st, under (?i)")

// foldRune returns the characters that match c when case is ignored. For ASCII these are the two letters, and
// ſ for s and the Kelvin sign for k. It refuses other characters, and pairs of letters that match one
// character, because Oniguruma's tables for them are not implemented.
func (r *patternReader) foldRune(c rune) (runs, error) {
	s, err := foldClass(runs{{c, c}})
	if err != nil {
		return nil, err
	}

	for _, pair := range manyFolds {
		if rune(pair[0]) == r.lastLiteral|0x20 && rune(pair[1]) == c|0x20 {
			return nil, errFold
		}
	}

	r.lastLiteral = c
	return s, nil
}

// foldClass returns the characters that match one of s when case is ignored; see foldRune.
func foldClass(s runs) (runs, error) {
	out := s.or(nil)
	for _, run := range s {
		if run[1] >= utf8.RuneSelf {
			return nil, errFold
		}
		for c := run[0]; c <= run[1]; c++ {
			if lower := c | 0x20; lower >= 'a' && lower <= 'z' {
				out = append(out, [2]rune{lower, lower}, [2]rune{lower - 0x20, lower - 0x20})
				switch lower {
				case 's':
					out = append(out, [2]rune{'ſ', 'ſ'})
				case 'k':
					out = append(out, [2]rune{'\u212a', '\u212a'})
				}
			}
		}
	}

	return out.merged(), nil
}
