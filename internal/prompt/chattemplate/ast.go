package chattemplate

// expression is a node of a parsed template that has a value. The parser makes these nodes before scopes are
// resolved, and the compiler turns each into a closure.
type expression interface{}

type (
	constant  struct{ value Value }
	name      struct{ id string }
	attribute struct {
		of   expression
		name string
	}
	subscript struct{ of, index expression }
	slice     struct{ of, start, stop, step expression } // a bound is nil if the template leaves it out
	listLit   struct{ items []expression }
	tupleLit  struct{ items []expression }
	dictLit   struct{ keys, values []expression }
	unary     struct {
		op string
		of expression
	}
	binary struct {
		op          string
		left, right expression
	}
	concat  struct{ parts []expression }
	compare struct {
		first expression
		ops   []string
		rest  []expression
	}
	conditional struct{ test, then, els expression } // without els the value is undefined
	filterExpr  struct {
		of   expression
		name string
		args callArgs
		line int
	}
	testExpr struct {
		of   expression
		name string
		args callArgs
		line int
	}
	call struct {
		of   expression
		args callArgs
		line int
	}
)

// callArgs are the arguments of a call. names[i] is the keyword of named[i]. star and dict are the operands
// of *args and **kwargs, nil if the call has none.
type callArgs struct {
	positional []expression
	names      []string
	named      []expression
	star, dict expression // *args, **kwargs
}

// target is the left side of an assignment. It is one name, an attribute of a namespace (name.attr), or a
// tuple of targets.
type target struct {
	name  string
	attr  string // empty unless the target is name.attr
	tuple []target
	line  int
}

// statement is a node of a parsed template that has an effect, and no value.
type statement interface{}

type (
	output struct {
		text string     // literal text, if of is nil
		of   expression // the expression of {{ … }}
		line int
	}
	ifStmt struct {
		tests  []expression
		bodies [][]statement
		els    []statement
		line   int
	}
	forStmt struct {
		target    target
		iter      expression
		filter    expression
		recursive bool
		body, els []statement
		line      int
	}
	setStmt struct {
		target target
		value  expression
		line   int
	}
	setBlock struct {
		target  target
		filters []filterExpr
		body    []statement
		line    int
	}
	macroStmt struct {
		name     string
		params   []string
		defaults []expression // default values of the last parameters
		body     []statement
		line     int
	}
	callBlock struct {
		call  expression
		macro *macroStmt
		line  int
	}
	filterBlock struct {
		filters []filterExpr
		body    []statement
		line    int
	}
	withStmt struct {
		targets []target
		values  []expression
		body    []statement
	}
	// scopeStmt is a body with its own scope, such as that of {% generation %}.
	scopeStmt struct{ body []statement }
	doStmt    struct{ of expression }
	jump      struct{ signal signal } // {% break %} or {% continue %}
)

// signal is the way in which a statement ended. It decides which statement runs next.
type signal uint8

const (
	next         signal = iota // run the following statement
	breakLoop                  // leave the innermost loop
	continueLoop               // start the next iteration of the innermost loop
	stop                       // end the render, because it failed
)
