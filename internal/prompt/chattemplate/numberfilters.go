package chattemplate

import (
	"math"
	"math/big"
	"strconv"
	"strings"
)

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
