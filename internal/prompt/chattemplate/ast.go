package chattemplate

// expression is a node of a parsed template that has a value. The parser makes these nodes before scopes are
// resolved, and the compiler turns each into a closure.
type expression interface{}

type (
	// constant is a literal, or one of the names true, false and none.
	constant struct{ value Value }
	// name reads a variable.
	name struct{ id string }
	// attribute is of.name.
	attribute struct {
		of   expression
		name string
	}
	// subscript is of[index].
	subscript struct{ of, index expression }
	// slice is of[start:stop:step]. A bound is nil if the template leaves it out.
	slice struct{ of, start, stop, step expression }
	// listLit, tupleLit and dictLit are the literals [a, b], (a, b) and {a: b}.
	listLit  struct{ items []expression }
	tupleLit struct{ items []expression }
	dictLit  struct{ keys, values []expression }
	// unary is op of, for the operators not, - and +.
	unary struct {
		op string
		of expression
	}
	// binary is left op right, for the operators and, or and the arithmetic ones.
	binary struct {
		op          string
		left, right expression
	}
	// concat is the parts joined by ~.
	concat struct{ parts []expression }
	// compare is a chain of comparisons: first ops[0] rest[0] ops[1] rest[1] ….
	compare struct {
		first expression
		ops   []string
		rest  []expression
	}
	// conditional is "then if test else els". els may be nil, and the value is then undefined if test is
	// false.
	conditional struct{ test, then, els expression }
	// filterExpr is of | name(args). of is nil in the filters of a block.
	filterExpr struct {
		of   expression
		name string
		args callArgs
		line int
	}
	// testExpr is of is name(args).
	testExpr struct {
		of   expression
		name string
		args callArgs
		line int
	}
	// call is of(args).
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
}

// statement is a node of a parsed template that has an effect, and no value.
type statement interface{}

type (
	// output is {{ of }}, or literal text if of is nil.
	output struct {
		text string
		of   expression
		line int
	}
	// ifStmt is {% if %}. bodies[i] runs if tests[i] is the first true test, and els if none is.
	ifStmt struct {
		tests  []expression
		bodies [][]statement
		els    []statement
		line   int
	}
	// forStmt is {% for target in iter if filter %}. els is the body that runs if there are no elements.
	forStmt struct {
		target    target
		iter      expression
		filter    expression
		recursive bool
		body, els []statement
		line      int
	}
	// setStmt is {% set target = value %}.
	setStmt struct {
		target target
		value  expression
		line   int
	}
	// setBlock is {% set target | filters %}body{% endset %}.
	setBlock struct {
		target  target
		filters []filterExpr
		body    []statement
		line    int
	}
	// macroStmt is {% macro name(params) %}. defaults are the default values of the last parameters.
	macroStmt struct {
		name     string
		params   []string
		defaults []expression
		body     []statement
	}
	// callBlock is {% call call %}body{% endcall %}. The body is a macro named caller.
	callBlock struct {
		call  expression
		macro *macroStmt
		line  int
	}
	// filterBlock is {% filter filters %}body{% endfilter %}.
	filterBlock struct {
		filters []filterExpr
		body    []statement
		line    int
	}
	// withStmt is {% with targets[0] = values[0], … %}.
	withStmt struct {
		targets []target
		values  []expression
		body    []statement
	}
	// scopeStmt is a body with its own scope, such as that of {% generation %}.
	scopeStmt struct{ body []statement }
	// doStmt is {% do of %}, which discards the value.
	doStmt struct{ of expression }
	// jump is {% break %} or {% continue %}.
	jump struct{ signal signal }
)

// signal is the way in which a statement ended. It decides which statement runs next.
type signal uint8

const (
	next         signal = iota // run the following statement
	breakLoop                  // leave the innermost loop
	continueLoop               // start the next iteration of the innermost loop
	stop                       // end the render, because it failed
)
