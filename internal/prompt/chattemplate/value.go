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
	// object is a namespace or a loop.
	object
)

// Value is one Python value. Strings, numbers and constants are stored in the Value itself, so that most of a
// render allocates nothing. Containers are shared by reference, as in Python.
type Value struct {
	// kind is the Python type. It decides which of the other fields are used.
	kind Kind
	// markup is set for a string that the filters safe or escape returned. Adding another string to it
	// escapes that one.
	markup bool
	// num is a Bool as 0 or 1, an Int as int64, or the bits of a Float.
	num uint64
	// str is the text of a String. For an undefined value it is the name that an error reports.
	str string
	// ref is a *List, *Dict, *big.Int (an Int beyond 64 bits), *callable, *namespace or *loop, else nil.
	ref any
}

// List is a sequence. seq is its Python type.
type List struct {
	seq   sequence
	Items []Value
	// nextUnread is the position of the next element that a generator returns.
	nextUnread int
}

// sequence is the Python type of a List.
type sequence uint8

const (
	listSeq sequence = iota
	tupleSeq
	rangeSeq
	keysView
	valuesView
	itemsView
	// generatorSeq is the result of a filter that is lazy in Jinja. It can be read once, has no length, and is true
	// even without elements.
	generatorSeq
)

// sequenceNames holds the names of Python's types, by sequence.
var sequenceNames = [...]string{"list", "tuple", "range", "dict_keys", "dict_values", "dict_items", "generator"}

// The constants of Python, and the undefined value of Jinja.
var (
	undefined  = Value{}
	none       = Value{kind: None}
	falseValue = Value{kind: Bool}
	trueValue  = Value{kind: Bool, num: 1}
)

// NoneValue returns Python's None.
func NoneValue() Value { return none }

// StringValue returns a str.
func StringValue(s string) Value { return Value{kind: String, str: s} }

// BoolValue returns a bool.
func BoolValue(b bool) Value {
	if b {
		return trueValue
	}
	return falseValue
}

// IntValue returns an int.
func IntValue(i int) Value { return Value{kind: Int, num: uint64(i)} }

// FloatValue returns a float.
func FloatValue(f float64) Value { return Value{kind: Float, num: math.Float64bits(f)} }

// ListValue returns a list that keeps the slice.
func ListValue(items []Value) Value { return Value{kind: ListKind, ref: &List{Items: items}} }

// DictValue returns a dict that keeps d.
func DictValue(d *Dict) Value { return Value{kind: DictKind, ref: d} }

// tuple returns a tuple, which keeps the slice.
func tuple(items ...Value) Value {
	return Value{kind: ListKind, ref: &List{seq: tupleSeq, Items: items}}
}

// sequenceOf returns a sequence of a type, which keeps the slice.
func sequenceOf(seq sequence, items []Value) Value {
	return Value{kind: ListKind, ref: &List{seq: seq, Items: items}}
}

// bigValue returns an int. It keeps i only if the value exceeds 64 bits.
func bigValue(i *big.Int) Value {
	if i.IsInt64() {
		return IntValue(int(i.Int64()))
	}
	return Value{kind: Int, ref: i}
}

// undefinedValue returns an undefined value. An error that it causes begins with name.
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

// list returns the List of v, or nil if v is no sequence.
func (v Value) list() *List { l, _ := v.ref.(*List); return l }

// dict returns the Dict of v, or nil if v is no dict.
func (v Value) dict() *Dict { d, _ := v.ref.(*Dict); return d }

// int returns a Bool or an Int of at most 64 bits. Other kinds have no meaningful result.
func (v Value) int() int64 { return int64(v.num) }

// float returns a Float. Other kinds have no meaningful result.
func (v Value) float() float64 { return math.Float64frombits(v.num) }

// isBig reports whether v is an Int beyond 64 bits.
func (v Value) isBig() bool { return v.kind == Int && v.ref != nil }

// isSmallInt reports whether v is an Int of at most 64 bits or a Bool, which Python counts as an int.
func (v Value) isSmallInt() bool { return v.kind == Bool || v.kind == Int && v.ref == nil }

// isNumber reports whether v is a Bool, an Int or a Float.
func (v Value) isNumber() bool { return v.kind == Bool || v.kind == Int || v.kind == Float }

// big returns an Int or a Bool as a big integer. The caller must not change the result, because v may share
// it.
func (v Value) big() *big.Int {
	if b, ok := v.ref.(*big.Int); ok {
		return b
	}
	return big.NewInt(v.int())
}

// number returns a number as a float. An int beyond a float's range becomes infinite.
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

// truth returns Python's bool(v).
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

// typeName returns the name of v's type in Python's error messages.
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

// namespace is an object of Jinja's namespace(). Its attributes are the only values that a template can
// change in place.
type namespace struct{ attrs Dict }

// callable is the value of a Func.
type callable struct {
	name string
	call func(r *run, args *arguments) Value
	// macro is set for a macro, and around is then the frame in which it is defined.
	macro  *macroCode
	around *frame
}

// function returns a Func with a name.
func function(name string, call func(r *run, args *arguments) Value) Value {
	return Value{kind: Func, ref: &callable{name: name, call: call}}
}
