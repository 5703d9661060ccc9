package chattemplate

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/stator-project/stator/internal/jsonscan"
)

// jsonStyle holds the keyword arguments of json.dumps.
type jsonStyle struct {
	// ascii is ensure_ascii.
	ascii bool
	// indent is written once for each level. It counts only if lines is set.
	indent string
	// lines is set if indent was passed. Each element then gets its own line, even with an empty indent.
	lines bool
	// item and colon are the separators after an element and after a key.
	item, colon string
	sortKeys    bool
}

// errTooLarge is the error for a value whose JSON exceeds maxPrinted.
var errTooLarge = errors.New("value is too large for JSON")

// plainStyle is the default style of json.dumps.
var plainStyle = jsonStyle{item: ", ", colon: ": "}

// appendJSON appends Python's json.dumps(v). depth is the number of containers around v.
func appendJSON(dst []byte, v Value, style *jsonStyle, depth int) ([]byte, error) {
	if depth > maxNesting {
		return dst, errors.New("value is nested too deeply for JSON")
	}
	switch v.kind {
	case None:
		return append(dst, "null"...), nil
	case Bool:
		return strconv.AppendBool(dst, v.num != 0), nil
	case Int:
		return appendRepr(dst, v, 0), nil
	case Float:
		return appendJSONFloat(dst, v.float()), nil
	case String:
		return appendJSONString(dst, v.str, style.ascii), nil
	case ListKind:
		if l := v.list(); l.seq == listSeq || l.seq == tupleSeq {
			return appendJSONList(dst, l, style, depth)
		}
	case DictKind:
		return appendJSONDict(dst, v.dict(), style, depth)
	}

	return dst, fmt.Errorf("object of type %s is not JSON serializable", v.typeName())
}

// appendJSONFloat appends a float as json.dumps does, which writes NaN and Infinity as words.
func appendJSONFloat(dst []byte, f float64) []byte {
	switch {
	case math.IsNaN(f):
		return append(dst, "NaN"...)
	case math.IsInf(f, 1):
		return append(dst, "Infinity"...)
	case math.IsInf(f, -1):
		return append(dst, "-Infinity"...)
	}
	return appendFloat(dst, f)
}

// newline starts a new line at a depth, if the style has lines.
func (s *jsonStyle) newline(dst []byte, depth int) []byte {
	if !s.lines {
		return dst
	}
	dst = append(dst, '\n')
	for range depth {
		dst = append(dst, s.indent...)
	}
	return dst
}

// appendJSONList appends a list or tuple as a JSON array.
func appendJSONList(dst []byte, l *List, style *jsonStyle, depth int) (_ []byte, err error) {
	if len(l.Items) == 0 {
		return append(dst, "[]"...), nil
	}
	dst = append(dst, '[')
	for i, item := range l.Items {
		if len(dst) > maxPrinted {
			return dst, errTooLarge
		}
		if i > 0 {
			dst = append(dst, style.item...)
		}
		dst, err = appendJSON(style.newline(dst, depth+1), item, style, depth+1)
		if err != nil {
			return dst, err
		}
	}

	return append(style.newline(dst, depth), ']'), nil
}

// appendJSONDict appends a dict as a JSON object.
func appendJSONDict(dst []byte, d *Dict, style *jsonStyle, depth int) (_ []byte, err error) {
	if d.Len() == 0 {
		return append(dst, "{}"...), nil
	}
	order, err := d.jsonOrder(style.sortKeys)
	if err != nil {
		return dst, err
	}

	dst = append(dst, '{')
	for n := range d.keys {
		if len(dst) > maxPrinted {
			return dst, errTooLarge
		}
		i := n
		if order != nil {
			i = order[n]
		}
		if n > 0 {
			dst = append(dst, style.item...)
		}
		key, err := jsonKey(d.keys[i])
		if err != nil {
			return dst, err
		}
		dst = append(appendJSONString(style.newline(dst, depth+1), key, style.ascii), style.colon...)
		dst, err = appendJSON(dst, d.values[i], style, depth+1)
		if err != nil {
			return dst, err
		}
	}

	return append(style.newline(dst, depth), '}'), nil
}

// jsonKey converts a key to a string, as json.dumps does. It refuses keys of other types, such as tuples.
func jsonKey(k Value) (string, error) {
	switch k.kind {
	case String:
		return k.str, nil
	case None:
		return "null", nil
	case Bool:
		return strconv.FormatBool(k.num != 0), nil
	case Int:
		return text(k), nil
	case Float:
		return string(appendJSONFloat(nil, k.float())), nil
	}
	return "", fmt.Errorf("keys must be str, int, float, bool or None, not %s", k.typeName())
}

// appendJSONString appends s as json.dumps writes it. With ascii set (ensure_ascii) every character that is
// not printable ASCII is escaped, DEL included.
func appendJSONString(dst []byte, s string, ascii bool) []byte {
	const hex = "0123456789abcdef"
	const lastPrintable = '~'
	const long = 4096
	if len(s) > long { // growing step by step would allocate five times as much
		dst = slices.Grow(dst, len(s)+len(s)/4)
	}
	dst = append(dst, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= ' ' && c != '"' && c != '\\' && (c <= lastPrintable || !ascii) {
			i++
			continue
		}
		dst = append(dst, s[start:i]...)
		if c >= utf8.RuneSelf {
			r, n := utf8.DecodeRuneInString(s[i:])
			if r >= 0x10000 { // JSON escapes such a character as a surrogate pair
				r -= 0x10000
				dst = fmt.Appendf(dst, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
			} else {
				dst = fmt.Appendf(dst, `\u%04x`, r)
			}
			i += n
			start = i
			continue
		}
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\n':
			dst = append(dst, `\n`...)
		case '\r':
			dst = append(dst, `\r`...)
		case '\t':
			dst = append(dst, `\t`...)
		case '\f':
			dst = append(dst, `\f`...)
		case '\b':
			dst = append(dst, `\b`...)
		default:
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
		i++
		start = i
	}

	return append(append(dst, s[start:]...), '"')
}

// FromJSON reads one JSON value as Python's json.loads does. Objects become dicts, in their order. A repeated
// key keeps its first position and gets its last value. Whole numbers become ints of any size.
func FromJSON(src []byte) (Value, error) { return newJSONReader(src).read() }

// FromPythonJSON is [FromJSON] for Python's dialect, which also has NaN, Infinity and -Infinity. Values and
// keys that it reads are deducted from *most. Where more are needed it returns [ErrTooManyValues].
func FromPythonJSON(src []byte, most *int) (Value, error) {
	p := newJSONReader(src)
	p.python = true
	if most == nil {
		return p.read()
	}
	p.Counts = true
	p.Left = *most
	v, err := p.read()
	*most = p.Left
	return v, err
}

// ErrTooManyValues is the error for JSON with more values than the caller accepts.
var ErrTooManyValues = fmt.Errorf("parse JSON: %w", jsonscan.ErrTooMany)

// jsonReader makes values of JSON.
type jsonReader struct {
	jsonscan.Scanner
	// python accepts NaN, Infinity and -Infinity.
	python bool
}

func newJSONReader(src []byte) *jsonReader {
	return &jsonReader{Scanner: jsonscan.Scanner{Src: src, Depth: maxNesting}}
}

// read reads one value and checks that only white space follows.
func (p *jsonReader) read() (Value, error) {
	v := p.value()
	p.SkipSpace()
	if p.At < len(p.Src) {
		p.Fail("unexpected text after the value")
	}
	switch {
	case p.Err == nil:
		return v, nil
	case errors.Is(p.Err, jsonscan.ErrTooMany):
		return undefined, ErrTooManyValues
	}
	return undefined, fmt.Errorf("parse JSON: %w", p.Err)
}

// value reads a value of any kind.
func (p *jsonReader) value() Value {
	p.CountValue()
	switch p.Peek() {
	case jsonscan.Object:
		d := &Dict{}
		p.Members(p.NewString, func(key string) {
			p.CountValue()
			d.Set(key, p.value())
		})
		return DictValue(d)
	case jsonscan.Array:
		var items []Value
		p.EachElement(func(int) { items = append(items, p.value()) })
		return ListValue(items)
	case jsonscan.String:
		return StringValue(p.NewString())
	case jsonscan.Number:
		return p.number()
	case jsonscan.Bool:
		return BoolValue(p.ReadBool())
	case jsonscan.Null:
		p.ExpectWord("null")
	}
	return none
}

// number reads a number. A number without point and exponent is an int of any size, others are floats.
func (p *jsonReader) number() Value {
	start := p.At
	s := string(p.ReadNumber())
	switch {
	case p.Err != nil:
		return undefined
	case strings.HasSuffix(s, "N") || strings.HasSuffix(s, "y"): // NaN, and Infinity of either sign
		if !p.python {
			p.At = start
			p.Fail("unexpected character")
		}
		f, _ := strconv.ParseFloat(s, 64)
		return FloatValue(f)
	case strings.ContainsAny(s, ".eE"):
		f, _ := strconv.ParseFloat(s, 64) // a number out of range becomes infinite, as in Python
		return FloatValue(f)
	}
	if i, err := strconv.ParseInt(s, 10, 64); err == nil {
		return IntValue(int(i))
	}
	if len(strings.TrimPrefix(s, "-")) > maxDigits {
		p.At = start
		p.Fail(fmt.Sprintf("an integer of more than %d digits, which Python refuses,", maxDigits))
		return undefined
	}

	i, _ := new(big.Int).SetString(s, 10)
	return bigValue(i)
}
