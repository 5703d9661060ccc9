package chattemplate

// walk calls visit for each expression of body, nested bodies and expressions included.
func walk(body []statement, visit func(expression)) {
	for _, s := range body {
		walkStatement(s, visit)
	}
}

// walkStatement calls visit for each expression of one statement.
func walkStatement(s statement, visit func(expression)) {
	switch s := s.(type) {
	case output:
		walkExpr(visit, s.of)
	case ifStmt:
		walkExpr(visit, s.tests...)
		for _, b := range s.bodies {
			walk(b, visit)
		}
		walk(s.els, visit)
	case forStmt:
		walkExpr(visit, s.iter, s.filter)
		walk(s.body, visit)
		walk(s.els, visit)
	case setStmt:
		walkExpr(visit, s.value)
	case setBlock:
		walkFilters(visit, s.filters)
		walk(s.body, visit)
	case *macroStmt:
		walkExpr(visit, s.defaults...)
		walk(s.body, visit)
	case callBlock:
		walkExpr(visit, s.call)
		walkStatement(s.macro, visit)
	case filterBlock:
		walkFilters(visit, s.filters)
		walk(s.body, visit)
	case withStmt:
		walkExpr(visit, s.values...)
		walk(s.body, visit)
	case scopeStmt:
		walk(s.body, visit)
	case doStmt:
		walkExpr(visit, s.of)
	}
}

// walkFilters calls visit for each filter of a block and for its arguments.
func walkFilters(visit func(expression), filters []filterExpr) {
	for _, f := range filters {
		walkExpr(visit, f)
	}
}

// walkExpr calls visit for each expression of list and for the expressions inside. A nil expression is
// skipped.
func walkExpr(visit func(expression), list ...expression) {
	for _, e := range list {
		if e == nil {
			continue
		}
		visit(e)
		switch e := e.(type) {
		case attribute:
			walkExpr(visit, e.of)
		case subscript:
			walkExpr(visit, e.of, e.index)
		case slice:
			walkExpr(visit, e.of, e.start, e.stop, e.step)
		case listLit:
			walkExpr(visit, e.items...)
		case tupleLit:
			walkExpr(visit, e.items...)
		case dictLit:
			walkExpr(visit, e.keys...)
			walkExpr(visit, e.values...)
		case unary:
			walkExpr(visit, e.of)
		case binary:
			walkExpr(visit, e.left, e.right)
		case concat:
			walkExpr(visit, e.parts...)
		case compare:
			walkExpr(visit, e.first)
			walkExpr(visit, e.rest...)
		case conditional:
			walkExpr(visit, e.test, e.then, e.els)
		case filterExpr:
			walkExpr(visit, e.of)
			walkArgs(visit, e.args)
		case testExpr:
			walkExpr(visit, e.of)
			walkArgs(visit, e.args)
		case call:
			walkExpr(visit, e.of)
			walkArgs(visit, e.args)
		}
	}
}

// walkArgs calls visit for each argument of a call.
func walkArgs(visit func(expression), a callArgs) {
	walkExpr(visit, a.positional...)
	walkExpr(visit, a.named...)
	walkExpr(visit, a.star, a.dict)
}
