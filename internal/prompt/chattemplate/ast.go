package chattemplate

// The nodes of a parsed template, before scopes are known. A node says only what it is made
// of; compile turns it into closures.

type expression interface{}

type (
	constant  struct{ value Value }
	name      struct{ id string }
	attribute struct {
		of   expression
		name string
	}
	subscript struct{ of, index expression }
	slice     struct{ of, start, stop, step expression } // nil where left out
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
	conditional struct{ test, then, els expression } // els may be nil: undefined
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

type callArgs struct {
	positional []expression
	names      []string
	named      []expression
	star, dict expression // *args, **kwargs
}

// A target is what a value is assigned to: a name, an attribute of a namespace, or several.
type target struct {
	name  string
	attr  string // name.attr
	tuple []target
	line  int
}

type statement interface{}

type (
	output struct {
		text string     // where of is nil
		of   expression // {{ … }}
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
		defaults []expression // of the last parameters
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
	// scopeStmt is a body of its own, as {% generation %} has one.
	scopeStmt struct{ body []statement }
	doStmt    struct{ of expression }
	jump      struct{ signal signal }
)

// signal is how a statement ends.
type signal uint8

const (
	next signal = iota
	breakLoop
	continueLoop
	stop // an error
)
