package chattemplate

// dictMethod is the implementation of a method of dict.
type dictMethod func(r *run, d *Dict, args *arguments) Value

// dictMethods holds the methods of Python's dict. Methods that change the dict are errors, as in Jinja's
// ImmutableSandboxedEnvironment.
var dictMethods map[string]dictMethod

func init() { dictMethods = makeDictMethods() }

// makeDictMethods returns the methods of dict. An init function calls it, because the methods reach code that
// reads dictMethods, which a variable initializer may not.
func makeDictMethods() map[string]dictMethod {
	return map[string]dictMethod{
		"get": func(r *run, d *Dict, a *arguments) Value {
			key := a.argument(0, "key", undefined)
			if !hashable(key) {
				return r.failf("unhashable type: '%s'", key.typeName())
			}
			if v, ok := d.get(key); ok {
				return v
			}
			return a.argument(1, "default", none)
		},
		"items": func(_ *run, d *Dict, _ *arguments) Value { return sequenceOf(itemsView, d.items()) },
		"keys": func(_ *run, d *Dict, _ *arguments) Value {
			return sequenceOf(keysView, d.keys[:len(d.keys):len(d.keys)])
		},
		"values": func(_ *run, d *Dict, _ *arguments) Value {
			return sequenceOf(valuesView, d.values[:len(d.values):len(d.values)])
		},
		"copy": func(r *run, d *Dict, _ *arguments) Value {
			out := NewDict(d.Len())
			for i, k := range d.keys {
				out.set(k, d.values[i])
			}
			r.charge(d.Len())
			return DictValue(out)
		},
		"clear": forbiddenMethod[*Dict]("clear"), "pop": forbiddenMethod[*Dict]("pop"), "popitem": forbiddenMethod[*Dict]("popitem"),
		"setdefault": forbiddenMethod[*Dict]("setdefault"),
		"update":     forbiddenMethod[*Dict]("update"), "fromkeys": forbiddenMethod[*Dict]("fromkeys"),
	}
}

// bindDict returns the method m bound to d.
func bindDict(m dictMethod, name string, d *Dict) Value {
	return function(name, func(r *run, args *arguments) Value { return m(r, d, args) })
}

// forbiddenMethod returns a method that fails as Jinja's sandbox does.
func forbiddenMethod[T any](name string) func(*run, T, *arguments) Value {
	return func(r *run, _ T, _ *arguments) Value {
		return r.failf("access to attribute '%s' is unsafe", name)
	}
}

// listMethods holds the methods of Python's list. Methods that change the list are errors, as in Jinja's
// sandbox.
var listMethods map[string]func(r *run, l *List, args *arguments) Value

func init() { listMethods = makeListMethods() }

// makeListMethods returns the methods of list. An init function calls it, for the same reason as
// makeDictMethods.
func makeListMethods() map[string]func(r *run, l *List, args *arguments) Value {
	return map[string]func(r *run, l *List, args *arguments) Value{
		"index": func(r *run, l *List, a *arguments) Value {
			r.charge(len(l.Items))
			for i, v := range l.Items {
				if equal(v, a.argument(0, "value", undefined)) {
					return IntValue(i)
				}
			}
			return r.failf("value is not in list")
		},
		"count": func(r *run, l *List, a *arguments) Value {
			n := 0
			r.charge(len(l.Items))
			for _, v := range l.Items {
				if equal(v, a.argument(0, "value", undefined)) {
					n++
				}
			}
			return IntValue(n)
		},
		"copy": func(r *run, l *List, _ *arguments) Value {
			r.charge(len(l.Items))
			return ListValue(append([]Value{}, l.Items...))
		},
		"append": forbiddenMethod[*List]("append"), "clear": forbiddenMethod[*List]("clear"), "extend": forbiddenMethod[*List]("extend"),
		"insert": forbiddenMethod[*List]("insert"), "pop": forbiddenMethod[*List]("pop"), "remove": forbiddenMethod[*List]("remove"),
		"reverse": forbiddenMethod[*List]("reverse"), "sort": forbiddenMethod[*List]("sort"),
	}
}

// method returns a method of a list or tuple, bound to l. A tuple has only index and count.
func (l *List) method(name string) (Value, bool) {
	m, ok := listMethods[name]
	if !ok || l.seq > tupleSeq || l.seq == tupleSeq && name != "index" && name != "count" {
		return undefined, false
	}
	return function(name, func(r *run, args *arguments) Value { return m(r, l, args) }), true
}
