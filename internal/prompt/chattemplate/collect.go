package chattemplate

import (
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
)

// sortKey returns the value by which filters compare v. Strings are compared in lower case unless the
// template asks for case_sensitive.
func sortKey(v Value, caseSensitive bool) Value {
	if v.kind == String && !caseSensitive {
		return StringValue(lower(v.str))
	}
	return v
}

// sortByKeys returns items in the order of their keys. The sort is stable. It fails if Python cannot compare
// two of the keys.
func (r *run) sortByKeys(items, keys []Value, descending bool) []Value {
	if !r.charge(len(items) * 4) {
		return nil
	}

	at := make([]int, len(items))
	for i := range at {
		at[i] = i
	}

	slices.SortStableFunc(at, func(i, j int) int {
		if descending {
			i, j = j, i
		}
		c, ok := compareOrder(keys[i], keys[j])
		if !ok {
			r.failf("'<' not supported between instances of '%s' and '%s'", keys[i].typeName(), keys[j].typeName())
		}
		return c % 2 // 2 stands for NaN, which counts as equal here
	})

	out := make([]Value, len(items))
	for i, k := range at {
		out[i] = items[k]
	}
	return out
}

// sortKeys returns the sort key of each item. If attr is given it holds attribute paths, separated by commas,
// and the key is a tuple of their values.
func (r *run) sortKeys(items []Value, attr Value, caseSensitive bool) []Value {
	keys := make([]Value, len(items))
	for i, item := range items {
		if attr.kind == None {
			keys[i] = sortKey(item, caseSensitive)
			continue
		}
		var parts []Value
		for _, name := range strings.Split(text(attr), ",") {
			parts = append(parts, sortKey(r.lookUpPath(item, StringValue(name), none), caseSensitive))
		}
		keys[i] = tuple(parts...)
	}

	return keys
}

// sortFilter imitates Jinja's filter sort(reverse, case_sensitive, attribute).
func sortFilter(r *run, v Value, a *arguments) Value {
	items, ok := r.iterate(v)
	if !ok {
		return undefined
	}
	keys := r.sortKeys(items, a.argument(2, "attribute", none), a.argument(1, "case_sensitive", falseValue).truth())
	return ListValue(r.sortByKeys(items, keys, a.argument(0, "reverse", falseValue).truth()))
}

// dictSort imitates Jinja's filter dictsort(case_sensitive, by, reverse).
func dictSort(r *run, v Value, a *arguments) Value {
	if v.kind != DictKind {
		return r.failf("'%s' object has no attribute 'items'", v.typeName())
	}
	d := v.dict()
	by := d.keys
	switch name := text(a.argument(1, "by", StringValue("key"))); name {
	case "key":
	case "value":
		by = d.values
	default:
		return r.failf("You can only sort by either \"key\" or \"value\"")
	}

	keys := r.sortKeys(by, none, a.argument(0, "case_sensitive", falseValue).truth())
	return ListValue(r.sortByKeys(d.items(), keys, a.argument(2, "reverse", falseValue).truth()))
}

// jsonOrder returns the positions of the keys in the order in which json.dumps writes them. Without sort_keys
// it returns nil, which means the order of the dict.
func (d *Dict) jsonOrder(sorted bool) ([]int, error) {
	if !sorted {
		return nil, nil
	}

	r := &run{steps: 1 << 30} // enough steps for any dict that fits into memory
	at := make([]Value, len(d.keys))
	for i := range at {
		at[i] = IntValue(i)
	}

	out := make([]int, len(at))
	for i, v := range r.sortByKeys(at, d.keys, false) {
		out[i] = int(v.int())
	}
	return out, r.err
}

// unique imitates Jinja's filter unique(case_sensitive, attribute): it keeps the first item of each key.
func unique(r *run, v Value, a *arguments) Value {
	items, ok := r.iterate(v)
	if !ok {
		return undefined
	}

	attr := a.argument(1, "attribute", none)
	seen := &Dict{}
	var out []Value
	for i, key := range r.sortKeys(items, attr, a.argument(0, "case_sensitive", falseValue).truth()) {
		if !hashable(key) {
			return r.failf("unhashable type: '%s'", key.typeName())
		}

		// Keys that are no strings are found by linear search, whose cost grows with the keys seen.
		if !r.charge(1 + seen.Len()/8) {
			return undefined
		}
		if seen.indexOf(key) < 0 {
			seen.set(key, none)
			out = append(out, items[i])
		}
	}

	return sequenceOf(generatorSeq, out)
}

// sumFilter imitates Jinja's filter sum(attribute, start).
func sumFilter(r *run, v Value, a *arguments) Value {
	items, ok := r.iterate(v)
	if !ok {
		return undefined
	}

	sum := a.argument(1, "start", IntValue(0))
	for _, item := range items {
		if attr := a.argument(0, "attribute", none); attr.kind != None {
			item = r.lookUpPath(item, attr, none)
		}
		sum = r.arith("+", sum, item)
		if !r.charge(1) {
			return undefined
		}
	}

	return sum
}

// extremeFilter returns Jinja's filter min for sign -1, and max for sign 1. Of equal items it returns the
// first.
func extremeFilter(sign int) filter {
	return func(r *run, v Value, a *arguments) Value {
		items, ok := r.iterate(v)
		if !ok || len(items) == 0 {
			return undefinedValue("No aggregated item, sequence was empty: it")
		}
		keys := r.sortKeys(items, a.argument(1, "attribute", none), a.argument(0, "case_sensitive", falseValue).truth())
		best := 0
		for i := range items {
			c, ok := compareOrder(keys[i], keys[best])
			if !ok {
				return r.failf("'<' not supported between instances of '%s' and '%s'", keys[i].typeName(), keys[best].typeName())
			}
			if c == sign {
				best = i
			}
		}
		return items[best]
	}
}

// intFilter imitates Jinja's filter int(default, base).
func intFilter(r *run, v Value, a *arguments) Value {
	absent, base := a.argument(0, "default", IntValue(0)), r.intArg(a, 1, "base", 10)
	switch v.kind {
	case Undefined:
		return r.failUndefined(v)
	case Bool, Int:
		return r.unarySign("+", v)
	case Float:
		return truncate(v.float(), absent)
	case String:
		s := strings.TrimFunc(v.str, isSpace)
		if i, ok := parseInt(s, base); ok {
			return bigValue(i)
		}
		if f, ok := parseFloat(s); ok {
			return truncate(f, absent)
		}
	}

	return absent
}

// truncate returns the whole part of f as an integer, or absent if f is infinite or not a number.
func truncate(f float64, absent Value) Value {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return absent
	}
	i, _ := big.NewFloat(math.Trunc(f)).Int(nil)
	return bigValue(i)
}

// maxDigits is Python's bound on the decimal digits of an integer, sys.int_info.default_max_str_digits.
const maxDigits = 4300

// basePrefixes holds the prefixes that Python's int accepts before the digits of a base.
var basePrefixes = map[int]string{2: "0b", 8: "0o", 16: "0x"}

// parseInt imitates Python's int(s, base) for bases from 2 to 36. It accepts a sign, a prefix of the base,
// and digits with single underscores between them.
func parseInt(s string, base int) (*big.Int, bool) {
	if base < 2 || base > 36 {
		return nil, false
	}

	digits := strings.TrimLeft(s, "+-")
	if len(s)-len(digits) > 1 {
		return nil, false
	}
	sign := s[:len(s)-len(digits)]
	prefix := basePrefixes[base]
	if prefix != "" && len(digits) > len(prefix) && strings.EqualFold(digits[:len(prefix)], prefix) {
		digits = strings.TrimPrefix(digits[len(prefix):], "_")
	}
	digits, ok := withoutUnderscores(digits)
	if !ok || len(digits) > maxDigits {
		return nil, false
	}

	i, ok := new(big.Int).SetString(digits, base)
	if ok && sign == "-" {
		i.Neg(i)
	}
	return i, ok
}

// parseFloat imitates Python's float(s). It refuses hexadecimal floats, which only Go accepts.
func parseFloat(s string) (float64, bool) {
	s = strings.TrimFunc(s, isSpace)
	if strings.ContainsAny(s, "xXpP") {
		return 0, false
	}
	s, ok := withoutUnderscores(s)
	if !ok {
		return 0, false
	}
	f, err := strconv.ParseFloat(s, 64)
	return f, err == nil || math.IsInf(f, 0)
}

// withoutUnderscores removes the underscores of a number. It returns false if an underscore does not stand
// between two digits, which Python refuses.
func withoutUnderscores(s string) (string, bool) {
	if !strings.Contains(s, "_") {
		return s, true
	}
	if strings.HasPrefix(s, "_") || strings.HasSuffix(s, "_") || strings.Contains(s, "__") ||
		strings.Contains(s, "_.") || strings.Contains(s, "._") {
		return "", false
	}
	return strings.ReplaceAll(s, "_", ""), true
}

// floatFilter imitates Jinja's filter float(default).
func floatFilter(r *run, v Value, a *arguments) Value {
	absent := a.argument(0, "default", FloatValue(0))
	switch {
	case v.kind == Undefined:
		return r.failUndefined(v)
	case v.isNumber():
		return FloatValue(v.number())
	case v.kind == String:
		if f, ok := parseFloat(v.str); ok {
			return FloatValue(f)
		}
	}

	return absent
}

// roundFilter imitates Jinja's filter round(precision, method).
func roundFilter(r *run, v Value, a *arguments) Value {
	precision := r.intArg(a, 0, "precision", 0)
	if !v.isNumber() || precision < -300 || precision > 300 {
		return r.failOperands("round", v, v)
	}

	method := text(a.argument(1, "method", StringValue("common")))
	if method == "common" {
		if v.kind != Float {
			if precision >= 0 {
				return r.unarySign("+", v)
			}
			scale := math.Pow(10, float64(-precision))
			return IntValue(int(math.RoundToEven(v.number()/scale) * scale))
		}
		return FloatValue(roundTo(v.float(), precision))
	}

	scale := math.Pow(10, float64(precision))
	switch method {
	case "ceil":
		return FloatValue(math.Ceil(v.number()*scale) / scale)
	case "floor":
		return FloatValue(math.Floor(v.number()*scale) / scale)
	}
	return r.failf("method must be common, ceil or floor")
}

// roundTo imitates Python's round(f, precision). A tie is decided by the exact binary value of f, so that
// 2.675 becomes 2.67.
func roundTo(f float64, precision int) float64 {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return f
	}

	// The conversion to decimal text rounds exactly, and a product with a power of ten does not.
	if precision >= 0 {
		out, _ := strconv.ParseFloat(strconv.FormatFloat(f, 'f', precision, 64), 64)
		return out
	}

	scale := math.Pow(10, float64(-precision))
	return math.RoundToEven(f/scale) * scale
}

// absFilter imitates Python's abs, which is Jinja's filter abs.
func absFilter(r *run, v Value, _ *arguments) Value {
	if v.isNumber() && v.number() < 0 || v.kind == Float && math.Signbit(v.float()) {
		return r.unarySign("-", v)
	}
	return r.unarySign("+", v)
}

// indent imitates Jinja's filter indent(width, first, blank). width is a number of spaces or the prefix
// itself.
func indent(r *run, v Value, a *arguments) Value {
	in := a.argument(0, "width", IntValue(4))
	prefix := in.str
	if in.kind != String {
		prefix = strings.Repeat(" ", max(0, min(maxFill, r.intArg(a, 0, "width", 4))))
	}

	first, blank := a.argument(1, "first", falseValue).truth(), a.argument(2, "blank", falseValue).truth()

	// Jinja appends a newline before splitting, so that a final newline yields an empty last line.
	lines := r.splitLines(text(v)+"\n", false).list().Items
	if !r.chargeString((len(prefix) + 1) * len(lines)) {
		return undefined
	}

	var b strings.Builder
	for i, line := range lines {
		if i > 0 {
			b.WriteByte('\n')
		}
		if i == 0 && first || i > 0 && (blank || line.str != "") {
			b.WriteString(prefix)
		}
		b.WriteString(line.str)
	}

	return r.newString(b.String())
}

// attrFilter imitates Jinja's filter attr(name). Unlike v.name it returns an attribute only, and never an
// item.
func attrFilter(r *run, v Value, a *arguments) Value {
	name := r.stringArg(a, 0, "name")
	if v.kind == DictKind {
		if m, ok := dictMethods[name]; ok {
			return bindDict(m, name, v.dict())
		}
		return undefinedValue(name)
	}
	return r.attr(v, name)
}
