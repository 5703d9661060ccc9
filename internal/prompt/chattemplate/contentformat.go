package chattemplate

import "slices"

// wantsParts reports whether a template iterates over the parts of a message's content. The rule is vLLM's,
// which looks for a loop of one of three forms:
//   - over the content of a variable that a loop over messages sets; variables assigned from
//     messages count as messages
//   - in a macro, over a parameter that gets such a content in any call.
//   - outside macros, over a variable named content.
//
// vLLM's analysis gives up at a loop or an assignment whose target is not a single name. The result is then
// false.
func wantsParts(body []statement) bool {
	a := contentAnalysis{body: body, contentParams: map[string][]string{}}
	return a.findMessageVariables() && a.findContentLoop()
}

// contentAnalysis is the state of wantsParts for one template.
type contentAnalysis struct {
	body []statement
	// messageVars are the variables that loops over messages set.
	messageVars []string
	// contentParams lists the parameters that get a content, by the name of their macro.
	contentParams map[string][]string
}

// findMessageVariables fills messageVars. It returns false if the analysis has to give up.
func (a *contentAnalysis) findMessageVariables() bool {
	// lists grows in the loop: a variable assigned from messages may itself be assigned to another one.
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

// findContentLoop reports whether a loop iterates over a content. It collects the parameters of macros first,
// because a loop in a macro may precede the call.
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

// noteContentParams records the parameters of m to which a call passes a content.
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

// isContent reports whether e is the content of a message variable.
func (a *contentAnalysis) isContent(e expression) bool {
	return slices.ContainsFunc(a.messageVars, func(i string) bool { return accesses(e, i, "content") })
}

// hasContentLoop reports whether body contains a loop over a content. macro is true inside a macro, and
// params are its parameters that get a content.
func (a *contentAnalysis) hasContentLoop(body []statement, params []string, macro bool) bool {
	found := false
	for _, s := range body {
		switch s := s.(type) {
		case forStmt:
			n, named := s.iter.(name)
			over := a.isContent(s.iter) || named && (slices.Contains(params, n.id) || !macro && n.id == "content")
			found = found || over && s.target.tuple == nil
		case *macroStmt:
			// Inside a macro only its own parameters count, so that its body is searched separately.
			found = found || a.hasContentLoop(s.body, append(slices.Clip(params), a.contentParams[s.name]...), true)
			continue
		}
		for _, b := range innerBodies(s) {
			found = found || a.hasContentLoop(b, params, macro)
		}
	}

	return found
}

// accesses reports whether e is the variable, or its member key if key is not empty. Filters, tests and
// slices around it are ignored.
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

// eachStatement calls visit for every statement of body, nested ones included.
func eachStatement(body []statement, visit func(statement)) {
	for _, s := range body {
		visit(s)
		for _, b := range innerBodies(s) {
			eachStatement(b, visit)
		}
	}
}

// innerBodies returns the bodies directly inside s.
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
