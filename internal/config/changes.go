package config

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// Change is a key of the file whose value differs between two configurations.
type Change struct {
	// Key is the path of the key, such as models[llama].router.policy. Entries of lists are called by their names, or else counted from 0.
	Key string
	// Restart names the parts that read the value only at their start, as the tag reload does; empty if a change has its effect at once.
	Restart string
}

// live is the value of the tag reload of a key in a group of others that need a restart.
const live = "live"

// Changes returns the keys whose values differ, in the order of the file's documentation.
func Changes(before, after *Config) []Change {
	var out []Change
	compare(reflect.ValueOf(*before), reflect.ValueOf(*after), "", "", &out)
	return out
}

// compare adds the changes below a key. restart is the tag of the nearest key above that has one.
func compare(a, b reflect.Value, path, restart string, out *[]Change) {
	switch {
	case a.Kind() == reflect.Struct && len(fieldsOf(a.Type())) > 0:
		for i := range a.NumField() {
			field := a.Type().Field(i)
			key := field.Tag.Get("yaml")
			if key == "" || key == "-" {
				continue
			}
			if path != "" {
				key = path + "." + key
			}
			inner := cmp.Or(field.Tag.Get("reload"), restart)
			if whole := field.Tag.Get("entries"); whole != "" {
				compareLists(a.Field(i), b.Field(i), key, inner, whole, out)
				continue
			}
			compare(a.Field(i), b.Field(i), key, inner, out)
		}
	case a.Kind() == reflect.Slice && a.Type().Elem().Kind() == reflect.Struct:
		compareLists(a, b, path, restart, restart, out)
	case !reflect.DeepEqual(a.Interface(), b.Interface()):
		if restart == live {
			restart = ""
		}
		*out = append(*out, Change{path, restart})
	}
}

// compareLists compares lists whose entries are found by name. An entry that one of them lacks is a change itself, to which the tag whole
// applies.
func compareLists(a, b reflect.Value, path, restart, whole string, out *[]Change) {
	before, after := entries(a), entries(b)
	for i := range before.names {
		name := before.names[i]
		if other := after.find(name); other.IsValid() {
			compare(before.values[i], other, path+"["+name+"]", restart, out)
		} else {
			compareAlone(before.values[i], path+"["+name+"]", whole, out)
		}
	}
	for i, name := range after.names {
		if !before.find(name).IsValid() {
			compareAlone(after.values[i], path+"["+name+"]", whole, out)
		}
	}
}

// compareAlone adds the changes of an entry that one of two lists has: itself, and the keys in it that need a restart, unless it is live.
func compareAlone(entry reflect.Value, path, restart string, out *[]Change) {
	if restart != "" && restart != live {
		*out = append(*out, Change{path, restart})
		return
	}
	*out = append(*out, Change{Key: path})
	if restart == live { // with all that is in it
		return
	}
	var inner []Change
	defaults := reflect.New(entry.Type()).Elem()
	applyDefaults(defaults)
	compare(defaults, entry, path, "", &inner)
	for _, c := range inner {
		if c.Restart != "" {
			*out = append(*out, c)
		}
	}
}

// list has the entries of a list of the file, by name.
type list struct {
	names  []string
	values []reflect.Value
}

func (l *list) find(name string) (found reflect.Value) {
	if i := slices.Index(l.names, name); i >= 0 {
		return l.values[i]
	}
	return found
}

// entries returns the entries of a list. One without a name, or with the name of an earlier one, is called by its number.
func entries(v reflect.Value) list {
	var l list
	for i := range v.Len() {
		name := ""
		if f := v.Index(i).FieldByName("Name"); f.IsValid() {
			name = f.String()
		}
		if name == "" || slices.Contains(l.names, name) {
			name = fmt.Sprint(i)
		}
		l.names = append(l.names, name)
		l.values = append(l.values, v.Index(i))
	}
	return l
}

// ReadBy reports whether a part is among those that must be restarted for the change.
func (c *Change) ReadBy(part string) bool {
	return c.Restart != "" && (part == "" || c.Restart == everyPart || slices.Contains(strings.Split(c.Restart, ", "), part))
}

// The parts in the tag reload. A process that runs all of them has no name.
const everyPart = "every part"
