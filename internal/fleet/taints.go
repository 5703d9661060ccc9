package fleet

import (
	"fmt"
	"slices"
	"strings"
)

// Taints are marks of a worker that requests may require or prefer, such as "zone=a" or "long-context":
// the worker says what it is, the request what it wants. It is a string so that workers can be
// compared: the marks, sorted, each with a comma behind it.
type Taints string

// Bounds of a worker's taints. The name is what Kubernetes allows for a label and its value.
const (
	MaxTaints     = 64
	MaxTaintBytes = 317
)

// NewTaints makes taints of their names.
func NewTaints(names []string) (Taints, error) {
	if len(names) > MaxTaints {
		return "", fmt.Errorf("%d taints: there may be %d", len(names), MaxTaints)
	}
	sorted := slices.Sorted(slices.Values(names))
	var b strings.Builder
	for i, name := range sorted {
		if !ValidTaint(name) {
			return "", fmt.Errorf("taint %q must have 1 to %d visible ASCII characters and no comma", name, MaxTaintBytes)
		}
		if i > 0 && name == sorted[i-1] {
			continue
		}
		b.WriteString(name)
		b.WriteByte(',')
	}
	return Taints(b.String()), nil
}

// ValidTaint says whether name can be one: visible ASCII characters, no comma, at most 317 of them.
func ValidTaint(name string) bool {
	if name == "" || len(name) > MaxTaintBytes {
		return false
	}
	for i := range len(name) {
		if c := name[i]; c <= ' ' || c > '~' || c == ',' {
			return false
		}
	}
	return true
}

// Has says whether name is one of them.
func (t Taints) Has(name string) bool {
	for rest := string(t); rest != ""; {
		var this string
		if this, rest, _ = strings.Cut(rest, ","); this == name {
			return true
		}
	}
	return false
}

// Names lists them, sorted.
func (t Taints) Names() []string {
	if t == "" {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(t), ","), ",")
}
