package chattemplate

import "slices"

// wantsParts says whether a template goes through a message's content part by part. It is
// vLLM's rule: there is a loop over the content of a variable that a loop over messages (or
// over something assigned from messages) binds. Where vLLM's own analysis gives up, at a loop
// or an assignment with a target that is not one name, the answer is no, as there.
func wantsParts(body []statement) bool {
	lists, ok := []string{"messages"}, true
	for at := 0; at < len(lists); at++ {
		each(body, func(s statement) {
			if set, is := s.(setStmt); is && accesses(set.value, lists[at], "") {
				ok = ok && set.target.tuple == nil && set.target.attr == ""
				if !slices.Contains(lists, set.target.name) {
					lists = append(lists, set.target.name)
				}
			}
		})
	}
	var items []string
	each(body, func(s statement) {
		if loop, is := s.(forStmt); is && slices.ContainsFunc(lists, func(l string) bool { return accesses(loop.iter, l, "") }) {
			ok = ok && loop.target.tuple == nil
			items = append(items, loop.target.name)
		}
	})
	if !ok {
		return false
	}
	found := false
	each(body, func(s statement) {
		if loop, is := s.(forStmt); is && loop.target.tuple == nil {
			found = found || slices.ContainsFunc(items, func(i string) bool { return accesses(loop.iter, i, "content") })
		}
	})
	return found
}

// accesses says whether e is the variable, or its member key where key is not empty, perhaps
// filtered, tested or sliced.
func accesses(e expression, variable, key string) bool {
	is := func(e expression) bool { n, ok := e.(name); return ok && n.id == variable }
	switch e := e.(type) {
	case filterExpr:
		return accesses(e.of, variable, key)
	case testExpr:
		return accesses(e.of, variable, key)
	case slice:
		return accesses(e.of, variable, key)
	case attribute:
		return key != "" && e.name == key && is(e.of)
	case subscript:
		c, ok := e.index.(constant)
		return key != "" && ok && c.value.kind == String && c.value.str == key && is(e.of)
	}
	return key == "" && is(e)
}

// each calls visit for every statement of body, inner ones included.
func each(body []statement, visit func(statement)) {
	for _, s := range body {
		visit(s)
		switch s := s.(type) {
		case ifStmt:
			for _, b := range s.bodies {
				each(b, visit)
			}
			each(s.els, visit)
		case forStmt:
			each(s.body, visit)
			each(s.els, visit)
		case setBlock:
			each(s.body, visit)
		case *macroStmt:
			each(s.body, visit)
		case callBlock:
			each(s.macro.body, visit)
		case filterBlock:
			each(s.body, visit)
		case withStmt:
			each(s.body, visit)
		case scopeStmt:
			each(s.body, visit)
		}
	}
}
