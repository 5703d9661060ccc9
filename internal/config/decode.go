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

// decode sets the defaults of the struct that into points to, fills it from the document root, and returns
// every problem with its path. docs/adr/0010-own-yaml-walk.md has the reason
// for not using the YAML library's strict mode.
func decode(root *yaml.Node, into any) []error {
	d := decoder{}
	v := reflect.ValueOf(into).Elem()
	applyDefaults(v)
	if len(root.Content) > 0 {
		d.value(root.Content[0], v, "")
	}
	return d.errs
}

type decoder struct{ errs []error }

// maxDepth bounds nesting, aliases included.
const maxDepth = 32

// failf adds a problem with its path and line.
func (d *decoder) failf(n *yaml.Node, path, format string, args ...any) {
	if path == "" {
		path = "the file"
	}
	d.errs = append(d.errs, fmt.Errorf("%s (line %d): %s", path, n.Line, fmt.Sprintf(format, args...)))
}

// value decodes a node into a field of any kind.
func (d *decoder) value(n *yaml.Node, v reflect.Value, path string) {
	if strings.Count(path, ".")+strings.Count(path, "[") > maxDepth {
		d.failf(n, path, "is nested too deeply")
		return
	}
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
		return // a key without a value is an absent one
	}

	switch {
	case v.Type() == reflect.TypeFor[Duration]():
		d.duration(n, v, path)
	case v.Type() == reflect.TypeFor[BlockSize]():
		d.blockSize(n, v, path)
	case v.Kind() == reflect.Struct:
		d.structure(n, v, path)
	case v.Kind() == reflect.Slice:
		d.sequence(n, v, path)
	default:
		d.scalar(n, v, path)
	}
}

// structure decodes a mapping into a struct. A key that is unknown or repeated is a problem.
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

// sequence decodes a list. Each element has its defaults.
func (d *decoder) sequence(n *yaml.Node, v reflect.Value, path string) {
	if n.Kind != yaml.SequenceNode {
		d.failf(n, path, "must be a list")
		return
	}
	v.Set(reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content)))
	for i, child := range n.Content {
		applyDefaults(v.Index(i))
		d.value(child, v.Index(i), fmt.Sprintf("%s[%d]", path, i))
	}
}

// noEffect is the text about a key or value that would do nothing.
const noEffect = "has no effect yet; remove it"

func (d *decoder) duration(n *yaml.Node, v reflect.Value, path string) {
	t, err := time.ParseDuration(n.Value)
	if n.Kind != yaml.ScalarNode || err != nil {
		d.failf(n, path, "must be a duration with a unit, such as \"250ms\"")
		return
	}
	v.SetInt(int64(t))
}

// blockSize decodes "auto" or a number. 0 stands for "auto" in a [Model], and is none in a file.
func (d *decoder) blockSize(n *yaml.Node, v reflect.Value, path string) {
	if n.Kind == yaml.ScalarNode && n.Value == "auto" {
		v.SetInt(int64(AutoBlockSize))
		return
	}
	d.scalar(n, v, path)
	if n.Tag == "!!int" && v.Int() == int64(AutoBlockSize) {
		d.failf(n, path, "must lie between 1 and %d, or be \"auto\"", maxBlockSize)
	}
}

// scalar decodes a string, number, boolean, or mapping of these. A number is no string: people forget quotes.
func (d *decoder) scalar(n *yaml.Node, v reflect.Value, path string) {
	if v.Kind() == reflect.String && (n.Kind != yaml.ScalarNode || n.Tag != "!!str") {
		d.failf(n, path, "must be a string; put it in quotes")
		return
	}
	// The YAML library would cut the fraction off a number.
	isFraction := v.CanInt() && n.Tag == "!!float"
	if err := n.Decode(v.Addr().Interface()); err != nil || isFraction {
		d.failf(n, path, "must be %s", describe(v.Kind()))
	}
}

// describe names the value that a file must have for a field of a kind.
func describe(k reflect.Kind) string {
	switch k {
	case reflect.Int, reflect.Int64:
		return "a whole number"
	case reflect.Float64:
		return "a number"
	case reflect.Bool:
		return "true or false"
	case reflect.Map:
		return "a mapping of keys to values, each of its kind"
	default:
		return "a " + k.String()
	}
}

// noKey is the tag of a field that no file has.
const noKey = "-"

// fieldsOf returns the fields of a struct by their keys.
func fieldsOf(t reflect.Type) map[string]int {
	m := map[string]int{}
	for i := range t.NumField() {
		if key := t.Field(i).Tag.Get("yaml"); key != noKey {
			m[key] = i
		}
	}
	return m
}

// suggest names the known key that is nearest to a mistyped one, if one differs by fewer than 3 letters.
func suggest(key string, keys map[string]int) string {
	best := Nearest(key, slices.Sorted(maps.Keys(keys)))
	if best == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %s?", best)
}

// maxTypos is the greatest number of wrong letters with which a word is recognized.
const maxTypos = 2

// Nearest returns the known word that is nearest to a mistyped one, or "" if none is near.
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

// editDistance returns the number of letters that must be changed, added or removed to make b of a.
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
