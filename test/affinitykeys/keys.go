// Package affinitykeys has bodies of requests for the tests of keys: native, under wazero and in Envoy.
package affinitykeys

import (
	_ "embed"
	"strings"
)

//go:embed keys.txt
var text string

// Example is a line of keys.txt.
type Example struct {
	Line  int
	Class string // bodies of one class have equal keys; "-" is the class of those that have none
	Body  string
}

// All returns the examples in the order of the file.
func All() (list []Example) {
	for i, line := range strings.Split(text, "\n") {
		class, body, ok := strings.Cut(line, " ")
		if ok && class != "#" {
			list = append(list, Example{Line: i + 1, Class: class, Body: body})
		}
	}
	return list
}
