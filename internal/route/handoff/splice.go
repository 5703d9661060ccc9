package handoff

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"

	"github.com/stator-project/stator/internal/prompt/openai"
)

// errNoObject is the error for a body that is no JSON object.
var errNoObject = errors.New("it is no object")

// splice appends a JSON object to dst, without the members that drop selects and with others at its end. Engines take the last
// of several members with one name.
func splice(dst, object []byte, drop func(name string) bool, add string) ([]byte, error) {
	if !isObject(object) {
		return dst, errNoObject
	}
	begin := len(dst)
	dst = append(slices.Grow(dst, len(object)+len(add)+len("{,}")), '{')
	err := openai.EachMember(object, func(name string, from, to int) {
		if !drop(name) {
			dst = append(append(dst, object[from:to]...), ',')
		}
	})
	if err != nil {
		return dst[:begin], err
	}
	return append(append(dst, add...), '}'), nil
}

// isObject reports whether a text begins as a JSON object.
func isObject(text []byte) bool {
	text = bytes.TrimLeft(text, " \t\r\n")
	return len(text) > 0 && text[0] == '{'
}

// members returns the values of an object's members by name: of several with one name the last one. It returns an error for a
// text that is no object.
func members(object []byte, names ...string) (map[string][]byte, error) {
	if !isObject(object) {
		return nil, errNoObject
	}
	values := make(map[string][]byte, len(names))
	err := openai.EachMember(object, func(name string, from, to int) {
		for _, wanted := range names {
			if name == wanted {
				values[wanted] = openai.MemberValue(object[from:to])
			}
		}
	})
	if err != nil {
		return nil, err
	}
	return values, nil
}

func isText(value []byte) bool {
	var text string
	return len(value) > 0 && value[0] == '"' && json.Unmarshal(value, &text) == nil && text != ""
}

func isNumber(value []byte, low, high int64) bool {
	var n int64
	return len(value) > 0 && value[0] != 'n' && json.Unmarshal(value, &n) == nil && n >= low && n <= high
}

// isNull reports whether a member is missing or null.
func isNull(value []byte) bool { return value == nil || string(value) == "null" }
