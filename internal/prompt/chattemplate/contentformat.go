package chattemplate

import "slices"

// wantsParts says whether a template goes through a message's content part by part. It is
// vLLM's rule. There is a loop
//   - over the content of a variable that a loop over messages (or over something assigned from
//     messages) binds; or
//   - in a macro, over a parameter of it that is handed such a content somewhere; or
//   - outside macros, over a variable named content.
//
// Where vLLM's own analysis gives up before it has found one, at a loop or an assignment with a
// target that is not one name, the answer is no, as there.
func wantsParts(body []statement) bool {
	a := contentAnalysis{body: body, contentParams: map[string][]string{}}
	return a.findMessageVariables() && a.findContentLoop()
}

type contentAnalysis struct {
	body []statement
	// messageVars are the variables that loops over messages bind.
	messageVars []string
	// contentParams are the parameters of macros that are handed a content, by the macro's name.
	contentParams map[string][]string
}

// findMessageVariables finds the items; it says no where the analysis gives up.
func (a *contentAnalysis) findMessageVariables() bool {
	lists, ok := []string{"messages"}, true
	for at := 0; at < len(lists); at++ {
		eachStatement(a.body, func(s statement) {
			if set, is := s.(setStmt); is && accesses(set.value, lists[at], "") {
				ok = ok && set.target.tuple == nil && set.target.attr == ""
				if !slices.Contains(lists, set.target.name) {
					lists = append(lists, set.target.name)
				}
			}
		})
	}

	eachStatement(a.body, func(s statement) {
		if loop, is := s.(forStmt); is && slices.ContainsFunc(lists, func(l string) bool { return accesses(loop.iter, l, "") }) {
			ok = ok && loop.target.tuple == nil
			a.messageVars = append(a.messageVars, loop.target.name)
		}
	})
	return ok
}

// findContentLoop says whether a loop goes through a content.
func (a *contentAnalysis) findContentLoop() bool {
	var macros []*macroStmt
	eachStatement(a.body, func(s statement) {
		if m, is := s.(*macroStmt); is && m.name != "" {
			macros = append(macros, m)
		}
	})

	walk(a.body, func(e expression) {
		c, is := e.(call)
		if !is {
			return
		}
		for _, m := range macros {
			if n, is := c.of.(name); is && n.id == m.name {
				a.noteContentParams(m, c.args)
			}
		}
	})

	return a.hasContentLoop(a.body, nil, false)
}

// noteContentParams notes which parameters of m a call hands a content.
func (a *contentAnalysis) noteContentParams(m *macroStmt, args callArgs) {
	for i, e := range args.positional {
		if i < len(m.params) && a.isContent(e) {
			a.contentParams[m.name] = append(a.contentParams[m.name], m.params[i])
		}
	}
	for i, e := range args.named {
		if slices.Contains(m.params, args.names[i]) && a.isContent(e) {
			a.contentParams[m.name] = append(a.contentParams[m.name], args.names[i])
		}
	}
}

func (a *contentAnalysis) isContent(e expression) bool {
	return slices.ContainsFunc(a.messageVars, func(i string) bool { return accesses(e, i, "content") })
}

// hasContentLoop looks for the loop in body, which is in a macro, with these parameters of it, or in none.
func (a *contentAnalysis) hasContentLoop(body []statement, params []string, macro bool) bool {
	found := false
	for _, s := range body {
		switch s := s.(type) {
		case forStmt:
			n, named := s.iter.(name)
			over := a.isContent(s.iter) || named && (slices.Contains(params, n.id) || !macro && n.id == "content")
			found = found || over && s.target.tuple == nil
		case *macroStmt:
			found = found || a.hasContentLoop(s.body, append(slices.Clip(params), a.contentParams[s.name]...), true)
			continue
		}
		for _, b := range innerBodies(s) {
			found = found || a.hasContentLoop(b, params, macro)
		}
	}

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

// eachStatement calls visit for every statement of body, inner ones included.
func eachStatement(body []statement, visit func(statement)) {
	for _, s := range body {
		visit(s)
		for _, b := range innerBodies(s) {
			eachStatement(b, visit)
		}
	}
}

// innerBodies are the statements directly inside s.
func innerBodies(s statement) [][]statement {
	switch s := s.(type) {
	case ifStmt:
		return append(slices.Clip(s.bodies), s.els)
	case forStmt:
		return [][]statement{s.body, s.els}
	case setBlock:
		return [][]statement{s.body}
	case *macroStmt:
		return [][]statement{s.body}
	case callBlock:
		return [][]statement{s.macro.body}
	case filterBlock:
		return [][]statement{s.body}
	case withStmt:
		return [][]statement{s.body}
	case scopeStmt:
		return [][]statement{s.body}
	}
	return nil
}
