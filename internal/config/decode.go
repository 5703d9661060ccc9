package config

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// decode fills the struct that into points to from n and returns every problem with its
// path. It is our own walk, because the YAML library's strict mode names the Go type and the
// line where a person needs the path of the key.
func decode(n *yaml.Node, into any) []error {
	d := decoder{}
	d.value(n, reflect.ValueOf(into).Elem(), "")
	return d.errs
}

type decoder struct{ errs []error }

// maxDepth bounds nesting, aliases included.
const maxDepth = 32

func (d *decoder) failf(n *yaml.Node, path, format string, args ...any) {
	if path == "" {
		path = "the file"
	}
	d.errs = append(d.errs, fmt.Errorf("%s (line %d): %s", path, n.Line, fmt.Sprintf(format, args...)))
}

func (d *decoder) value(n *yaml.Node, v reflect.Value, path string) {
	if strings.Count(path, ".")+strings.Count(path, "[") > maxDepth {
		d.failf(n, path, "is nested too deeply")
		return
	}
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
		return
	}
	switch {
	case v.Type() == reflect.TypeFor[Duration]():
		d.duration(n, v, path)
	case v.Kind() == reflect.Struct:
		d.structure(n, v, path)
	case v.Kind() == reflect.Slice:
		d.sequence(n, v, path)
	default:
		d.scalar(n, v, path)
	}
}

func (d *decoder) structure(n *yaml.Node, v reflect.Value, path string) {
	if n.Kind != yaml.MappingNode {
		d.failf(n, path, "must be a mapping of keys to values")
		return
	}
	keys := fieldsOf(v.Type())
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, child := n.Content[i].Value, n.Content[i+1]
		at := strings.TrimPrefix(path+"."+key, ".")
		index, known := keys[key]
		switch {
		case seen[key]:
			d.failf(n.Content[i], at, "is there twice")
		case !known:
			d.failf(n.Content[i], at, "is not a known key%s", suggest(key, keys))
		default:
			d.value(child, v.Field(index), at)
		}
		seen[key] = true
	}
}

func (d *decoder) sequence(n *yaml.Node, v reflect.Value, path string) {
	if n.Kind != yaml.SequenceNode {
		d.failf(n, path, "must be a list")
		return
	}
	v.Set(reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content)))
	for i, child := range n.Content {
		d.value(child, v.Index(i), fmt.Sprintf("%s[%d]", path, i))
	}
}

func (d *decoder) duration(n *yaml.Node, v reflect.Value, path string) {
	t, err := time.ParseDuration(n.Value)
	if n.Kind != yaml.ScalarNode || err != nil {
		d.failf(n, path, "must be a duration with a unit, such as \"250ms\"")
		return
	}
	v.SetInt(int64(t))
}

func (d *decoder) scalar(n *yaml.Node, v reflect.Value, path string) {
	if v.Kind() == reflect.String && (n.Kind != yaml.ScalarNode || n.Tag != "!!str") {
		d.failf(n, path, "must be a string; put it in quotes")
		return
	}
	if err := n.Decode(v.Addr().Interface()); err != nil {
		d.failf(n, path, "must be %s", describe(v.Kind()))
	}
}

func describe(k reflect.Kind) string {
	switch k {
	case reflect.Int, reflect.Int64:
		return "a whole number"
	case reflect.Float64:
		return "a number"
	case reflect.Map:
		return "a mapping of keys to values, each of its kind"
	default:
		return "a " + k.String()
	}
}

func fieldsOf(t reflect.Type) map[string]int {
	m := map[string]int{}
	for i := range t.NumField() {
		m[t.Field(i).Tag.Get("yaml")] = i
	}
	return m
}

// suggest names the known key that is nearest to a mistyped one, if one is near.
func suggest(key string, keys map[string]int) string {
	best := Nearest(key, slices.Sorted(maps.Keys(keys)))
	if best == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %s?", best)
}

// maxTypos is how many letters a word may have wrong to be recognized.
const maxTypos = 2

// Nearest returns the known word that is nearest to a mistyped one, or "" where none is near.
func Nearest(word string, known []string) string {
	best := ""
	distance := maxTypos + 1
	for _, k := range known {
		if n := editDistance(strings.ToLower(word), strings.ToLower(k)); n < distance {
			best = k
			distance = n
		}
	}
	return best
}

func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
