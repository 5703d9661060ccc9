package chattemplate

import (
	"cmp"
	"strings"
)

// equal evaluates Python's a == b.
func equal(a, b Value) bool {
	left := maxCompared
	return equalWithin(a, b, &left)
}

// maxCompared bounds the pairs of elements that one comparison visits. Lists that share elements may have more
// paths than any computer can follow; such lists count as different.
const maxCompared = 1 << 20

// equalWithin evaluates a == b. It deducts the pairs that it visits from *left, and returns false if none is
// left.
func equalWithin(a, b Value, left *int) bool {
	*left--
	if *left < 0 {
		return false
	}
	if a.isNumber() && b.isNumber() {
		return compareNumbers(a, b) == 0
	}
	if a.kind != b.kind {
		return false
	}

	switch a.kind {
	case Undefined, None:
		return true
	case String:
		return a.str == b.str
	case ListKind:
		x, y := a.list(), b.list()
		if x == y {
			return true
		}
		// Python compares generators and views by identity.
		if x.seq != y.seq || len(x.Items) != len(y.Items) || x.seq == generatorSeq ||
			x.seq == valuesView {
			return false
		}
		for i := range x.Items {
			if !equalWithin(x.Items[i], y.Items[i], left) {
				return false
			}
		}
		return true
	case DictKind:
		x, y := a.dict(), b.dict()
		if x == y {
			return true
		}
		if x.Len() != y.Len() {
			return false
		}
		for i, k := range x.keys {
			if v, ok := y.get(k); !ok || !equalWithin(x.values[i], v, left) {
				return false
			}
		}
		return true
	}

	return a.ref == b.ref
}

// compareNumbers returns -1, 0 or 1 for a below, equal to or above b. It returns 2 if one of them is NaN,
// because NaN has no order.
func compareNumbers(a, b Value) int {
	if a.isSmallInt() && b.isSmallInt() {
		return cmp.Compare(a.int(), b.int())
	}
	if a.kind != Float && b.kind != Float {
		return a.big().Cmp(b.big())
	}

	x, y := a.number(), b.number()
	switch {
	case x < y:
		return -1
	case x > y:
		return 1
	case x == y:
		return 0
	}

	return 2
}

// compareOrder returns -1, 0 or 1 for a below, equal to or above b in Python's order, and 2 if one of them is
// NaN. ok is false if Python cannot order values of these types.
func compareOrder(a, b Value) (c int, ok bool) {
	switch {
	case a.isNumber() && b.isNumber():
		return compareNumbers(a, b), true
	case a.kind == String && b.kind == String:
		return strings.Compare(a.str, b.str), true
	case a.kind == ListKind && b.kind == ListKind:
		x, y := a.list(), b.list()
		if x.seq != y.seq || x.seq != listSeq && x.seq != tupleSeq {
			return 0, false
		}
		for i := range min(len(x.Items), len(y.Items)) {
			if !equal(x.Items[i], y.Items[i]) {
				return compareOrder(x.Items[i], y.Items[i])
			}
		}
		return cmp.Compare(len(x.Items), len(y.Items)), true
	}
	return 0, false
}

// compare evaluates a op b for Python's comparison operators, in and not in.
func (r *run) compare(op string, a, b Value) bool {
	if a.kind == b.kind || op == "in" || op == "not in" {
		r.chargeRead(b)
	}
	switch op {
	case "==":
		return equal(a, b)
	case "!=":
		return !equal(a, b)
	case "in":
		return r.contains(b, a)
	case "not in":
		return !r.contains(b, a)
	}

	if r.failIfUndefined(a) || r.failIfUndefined(b) {
		return false
	}

	c, ok := compareOrder(a, b)
	if !ok {
		r.failf("'%s' not supported between instances of '%s' and '%s'", op, a.typeName(), b.typeName())
		return false
	}

	switch op {
	case "<":
		return c == -1
	case "<=":
		return c == -1 || c == 0
	case ">":
		return c == 1
	}

	return c == 1 || c == 0
}

// contains evaluates Python's item in container. Like Python it consumes a generator up to the item.
func (r *run) contains(container, item Value) bool {
	switch container.kind {
	case String:
		if item.kind != String {
			r.failf("'in <string>' requires string as left operand, not %s", item.typeName())
			return false
		}
		return strings.Contains(container.str, item.str)
	case ListKind:
		l := container.list()
		for i := l.nextUnread; i < len(l.Items); i++ {
			if l.seq == generatorSeq {
				l.nextUnread = i + 1
			}
			if equal(l.Items[i], item) {
				return true
			}
		}
		return false
	case DictKind:
		if !hashable(item) {
			r.failf("unhashable type: '%s'", item.typeName())
			return false
		}
		return container.dict().indexOf(item) >= 0
	case Undefined:
		return false
	}

	r.failf("argument of type '%s' is not iterable", container.typeName())
	return false
}
