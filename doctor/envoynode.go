package doctor

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// node is a value in a JSON document that others wrote. Reading a value that is absent, or has another type, gives the zero
// value.
type node struct{ value any }

// maxValues bounds how many values of a document are read, which bounds the memory that they need.
const maxValues = 4 << 20

// parseNode reads a document.
func parseNode(document []byte) (node, error) {
	values := bytes.Count(document, []byte{','}) + bytes.Count(document, []byte{'['}) + bytes.Count(document, []byte{'{'})
	if values > maxValues {
		return node{}, fmt.Errorf("it has more than %d values", maxValues)
	}
	var n node
	err := json.Unmarshal(document, &n.value)
	return n, err
}

// at returns the value that the keys lead to.
func (n node) at(keys ...string) node {
	for _, key := range keys {
		object, _ := n.value.(map[string]any)
		n = node{object[key]}
	}
	return n
}

// has reports whether the keys lead to a value.
func (n node) has(keys ...string) bool { return n.at(keys...).value != nil }

// list returns the elements of the array that the keys lead to.
func (n node) list(keys ...string) (elements []node) {
	array, _ := n.at(keys...).value.([]any)
	for _, value := range array {
		elements = append(elements, node{value})
	}
	return elements
}

// each returns the entries of the object that the keys lead to, in the order of their names.
func (n node) each(keys ...string) (names []string, values []node) {
	object, _ := n.at(keys...).value.(map[string]any)
	names = slices.Sorted(maps.Keys(object))
	for _, name := range names {
		values = append(values, node{object[name]})
	}
	return names, values
}

// text returns the string that the keys lead to.
func (n node) text(keys ...string) string {
	s, _ := n.at(keys...).value.(string)
	return s
}

// texts returns the strings in the array that the keys lead to.
func (n node) texts(keys ...string) (all []string) {
	for _, element := range n.list(keys...) {
		all = append(all, element.text())
	}
	return all
}

// isTrue reports whether the keys lead to true.
func (n node) isTrue(keys ...string) bool {
	b, _ := n.at(keys...).value.(bool)
	return b
}

// number returns the number that the keys lead to, or otherwise the default. Envoy writes numbers of 64 bits as strings.
func (n node) number(otherwise float64, keys ...string) float64 {
	switch v := n.at(keys...).value.(type) {
	case float64:
		return v
	case string:
		if parsed, err := strconv.ParseFloat(v, 64); err == nil {
			return parsed
		}
	}
	return otherwise
}

// duration returns the duration that the keys lead to, such as "0.200s", or otherwise the default.
func (n node) duration(otherwise time.Duration, keys ...string) time.Duration {
	d, err := time.ParseDuration(n.text(keys...))
	if err != nil {
		return otherwise
	}
	return d
}

// config returns the content of a typed_config and the last part of its type, such as ExternalProcessor. It unwraps
// TypedStruct, in which control planes send types that they do not know.
func (n node) config() (content node, kind string) {
	for range 2 {
		name := n.text("@type")
		kind = name[strings.LastIndexAny(name, "./")+1:]
		if kind != "TypedStruct" {
			return n, kind
		}
		object, _ := n.at("value").value.(map[string]any)
		object = maps.Clone(object)
		if object == nil {
			object = map[string]any{}
		}
		object["@type"] = n.text("type_url")
		n = node{object}
	}
	return n, kind
}

// equals reports whether two values have the same content.
func (n node) equals(other node) bool { return reflect.DeepEqual(n.value, other.value) }

// mentions reports whether a string in the value, at any depth, contains the text.
func (n node) mentions(text string) bool {
	switch v := n.value.(type) {
	case string:
		return strings.Contains(v, text)
	case []any:
		return slices.ContainsFunc(v, func(element any) bool { return node{element}.mentions(text) })
	case map[string]any:
		for _, element := range v {
			if (node{element}).mentions(text) {
				return true
			}
		}
	}
	return false
}
