package chattemplate

import (
	"math"
	"math/big"
)

// Kind is the Python type of a Value, as far as templates can distinguish it.
type Kind uint8

// The kinds. The zero Value is undefined.
const (
	Undefined Kind = iota
	None
	Bool
	Int
	Float
	String
	ListKind
	DictKind
	// Func is anything that can be called: a macro, a method, a global function.
	Func
	// object is what only this package makes: namespaces and loops.
	object
)

// Value is one Python value. Strings, numbers and constants are held in place, so that most
// of a render allocates nothing; containers are shared by reference, as in Python.
type Value struct {
	kind Kind
	// markup is set for a string that filter safe or escape has marked: adding to it escapes.
	markup bool
	// num is a bool, an int64 or the bits of a float64.
	num uint64
	// str is the text of a String, or the name of what is Undefined.
	str string
	// ref is a *List, *Dict, *big.Int (an Int beyond 64 bits), *callable, *namespace or *loop.
	ref any
}

// List is a sequence. seq is its Python type.
type List struct {
	seq        sequence
	Items      []Value
	nextUnread int // a generator's position
	// isGroup is set for groupby's pairs, whose elements also have names.
	isGroup bool
}

// sequence is the type of a List.
type sequence uint8

const (
	listSeq sequence = iota
	tupleSeq
	rangeSeq
	keysView
	valuesView
	itemsView
	// generatorSeq is a lazy filter's result: it can be read once, has no length and is true.
	generatorSeq
)

var sequenceNames = [...]string{"list", "tuple", "range", "dict_keys", "dict_values", "dict_items", "generator"}

// Constants.
var (
	undefined  = Value{}
	none       = Value{kind: None}
	falseValue = Value{kind: Bool}
	trueValue  = Value{kind: Bool, num: 1}
)

// NoneValue is Python's None.
func NoneValue() Value { return none }

// StringValue is a str.
func StringValue(s string) Value { return Value{kind: String, str: s} }

// BoolValue is a bool.
func BoolValue(b bool) Value {
	if b {
		return trueValue
	}
	return falseValue
}

// IntValue is an int.
func IntValue(i int) Value { return Value{kind: Int, num: uint64(i)} }

// FloatValue is a float.
func FloatValue(f float64) Value { return Value{kind: Float, num: math.Float64bits(f)} }

// ListValue is a list that holds items; it keeps the slice.
func ListValue(items []Value) Value { return Value{kind: ListKind, ref: &List{Items: items}} }

// DictValue is a dict.
func DictValue(d *Dict) Value { return Value{kind: DictKind, ref: d} }

func tuple(items ...Value) Value {
	return Value{kind: ListKind, ref: &List{seq: tupleSeq, Items: items}}
}

func sequenceOf(seq sequence, items []Value) Value {
	return Value{kind: ListKind, ref: &List{seq: seq, Items: items}}
}

func bigValue(i *big.Int) Value {
	if i.IsInt64() {
		return IntValue(int(i.Int64()))
	}
	return Value{kind: Int, ref: i}
}

func undefinedValue(name string) Value { return Value{str: name} }

// Kind is the kind of v.
func (v Value) Kind() Kind { return v.kind }

// Text is the text of a String, else "".
func (v Value) Text() string {
	if v.kind == String {
		return v.str
	}
	return ""
}

// Dict returns the dict of a DictKind, and a new empty one for any other kind.
func (v Value) Dict() *Dict {
	if d := v.dict(); d != nil {
		return d
	}
	return &Dict{}
}

// Items are the elements of a ListKind, not a copy; nil for anything else.
func (v Value) Items() []Value {
	if l := v.list(); l != nil {
		return l.Items
	}
	return nil
}

// Len is the number of elements of a ListKind, 0 for anything else.
func (v Value) Len() int { return len(v.Items()) }

func (v Value) list() *List      { l, _ := v.ref.(*List); return l }
func (v Value) dict() *Dict      { d, _ := v.ref.(*Dict); return d }
func (v Value) int() int64       { return int64(v.num) }
func (v Value) float() float64   { return math.Float64frombits(v.num) }
func (v Value) isBig() bool      { return v.kind == Int && v.ref != nil }
func (v Value) isSmallInt() bool { return v.kind == Bool || v.kind == Int && v.ref == nil }
func (v Value) isNumber() bool   { return v.kind == Bool || v.kind == Int || v.kind == Float }

func (v Value) big() *big.Int {
	if b, ok := v.ref.(*big.Int); ok {
		return b
	}
	return big.NewInt(v.int())
}

// number is v, a number, as a float; an int beyond a float's range is infinite.
func (v Value) number() float64 {
	switch {
	case v.kind == Float:
		return v.float()
	case v.isBig():
		f, _ := new(big.Float).SetInt(v.big()).Float64()
		return f
	}
	return float64(v.int())
}

// truth is Python's bool(v).
func (v Value) truth() bool {
	switch v.kind {
	case Undefined, None:
		return false
	case Bool:
		return v.num != 0
	case Int:
		return v.ref != nil || v.num != 0
	case Float:
		return v.float() != 0
	case String:
		return v.str != ""
	case ListKind:
		l := v.list()
		return l.seq == generatorSeq || len(l.Items) > 0
	case DictKind:
		return v.dict().Len() > 0
	}
	return true
}

// typeName is what Python calls the type of v.
func (v Value) typeName() string {
	switch v.kind {
	case None:
		return "NoneType"
	case Bool:
		return "bool"
	case Int:
		return "int"
	case Float:
		return "float"
	case String:
		return "str"
	case ListKind:
		return sequenceNames[v.list().seq]
	case DictKind:
		return "dict"
	case Func:
		return "function"
	case object:
		if _, ok := v.ref.(*namespace); ok {
			return "Namespace"
		}
		return "LoopContext"
	}
	return "Undefined"
}

// namespace is what namespace() makes: the one thing a template may assign to from within.
type namespace struct{ attrs Dict }

// callable is a Func. It is called with positional and named arguments.
type callable struct {
	name string
	call func(r *run, args *arguments) Value
}

func function(name string, call func(r *run, args *arguments) Value) Value {
	return Value{kind: Func, ref: &callable{name, call}}
}
