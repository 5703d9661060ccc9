package dynamograph

import (
	"fmt"
	"regexp"
	"strconv"

	"go.yaml.in/yaml/v3"
)

// reader reads one object. It keeps the first error, after which its result does not count.
type reader struct {
	graph      Graph
	backend    string
	components []*component
	env        []variable // of all components
	err        error
}

// field reads the value of one field, whose place in the object is path.
type field func(value *yaml.Node, path string)

// note adds a note.
func (r *reader) note(path, format string, args ...any) {
	r.graph.Notes = append(r.graph.Notes, Note{Field: path, Why: fmt.Sprintf(format, args...)})
}

// refuse records an error about a field.
func (r *reader) refuse(path, format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("%s %s", path, fmt.Sprintf(format, args...))
	}
}

// read reads the fields of a mapping in their order. A field in known is read by its function, and another one gets a note, with its
// sentence in why or about an unknown field.
func (r *reader) read(n *yaml.Node, path string, known map[string]field, why map[string]string) {
	if isEmpty(n) {
		return
	}
	if n.Kind != yaml.MappingNode {
		r.refuse(path, "must be a mapping of keys to values")
		return
	}

	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i].Value, n.Content[i+1]
		if isEmpty(value) {
			continue
		}
		at := join(path, key)
		read, isKnown := known[key]
		sentence, isRefused := why[key]
		if !isRefused {
			sentence, isRefused = why[allOthers]
		}
		switch {
		case isKnown && read != nil:
			read(value, at)
		case isKnown: // without an effect on the fleet
		case isRefused:
			r.note(at, "%s", sentence)
		default:
			r.note(at, "Stator does not know this field")
		}
	}
}

// allOthers is the key of the sentence about fields without another one.
const allOthers = "*"

// plainKey is a key that needs no quotation marks in a path.
var plainKey = regexp.MustCompile(`^[A-Za-z0-9_-]{1,80}$`)

// join returns the path of a key.
func join(path, key string) string {
	switch {
	case !plainKey.MatchString(key):
		return path + "[" + quoted(key) + "]"
	case path == "":
		return key
	}
	return path + "." + key
}

// isEmpty reports whether a value is the same as no value.
func isEmpty(n *yaml.Node) bool {
	switch {
	case n == nil:
		return true
	case n.Kind == yaml.ScalarNode:
		return n.Tag == "!!null" || n.Tag == "!!bool" && n.Value == "false" || n.Value == ""
	case n.Kind == yaml.MappingNode:
		if e := member(n, "enabled"); e != nil {
			return isEmpty(e)
		}
		return false // scalingAdapter: {} has a meaning
	}
	return len(n.Content) == 0
}

// member returns the value of a key of a mapping; nil if there is none.
func member(n *yaml.Node, key string) *yaml.Node {
	if n == nil || n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return n.Content[i+1]
		}
	}
	return nil
}

// text returns a scalar as it is written; empty for another value.
func text(n *yaml.Node) string {
	if n == nil || n.Kind != yaml.ScalarNode {
		return ""
	}
	return n.Value
}

// text returns a function that reads a scalar.
func (r *reader) text(into *string) field {
	return func(n *yaml.Node, path string) {
		if n.Kind != yaml.ScalarNode {
			r.refuse(path, "must be a text")
			return
		}
		*into = n.Value
	}
}

// texts returns a function that reads a list of scalars.
func (r *reader) texts(into *[]string) field {
	return func(n *yaml.Node, path string) {
		if n.Kind != yaml.SequenceNode {
			r.refuse(path, "must be a list of texts")
			return
		}
		for i, child := range n.Content {
			var one string
			r.text(&one)(child, fmt.Sprintf("%s[%d]", path, i))
			*into = append(*into, one)
		}
	}
}

// number returns a function that reads a whole number from 0 to a bound. Quantities of GPUs are texts.
func (r *reader) number(into *int, most int) field {
	return func(n *yaml.Node, path string) {
		v, err := strconv.Atoi(text(n))
		if err != nil || v < 0 || v > most {
			r.refuse(path, "is %s: it must be a whole number from 0 to %d", quoted(text(n)), most)
			return
		}
		*into = v
	}
}

// inside returns a function that reads the fields of a mapping.
func (r *reader) inside(known map[string]field, why map[string]string) field {
	return func(n *yaml.Node, path string) { r.read(n, path, known, why) }
}

// each returns a function that reads the elements of a list.
func (r *reader) each(element field) field {
	return func(n *yaml.Node, path string) {
		if n.Kind != yaml.SequenceNode {
			r.refuse(path, "must be a list")
			return
		}
		for i, child := range n.Content {
			element(child, fmt.Sprintf("%s[%d]", path, i))
		}
	}
}
