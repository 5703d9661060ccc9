package fleet

import (
	"fmt"
	"slices"
	"strings"
)

// Taints are marks of a worker that requests may require or prefer, such as "zone=a" or "long-context".
// They are one string so that workers can be compared with ==: the marks, sorted, each with a comma behind
// it.
type Taints string

// Bounds of a worker's taints. The name has the length that Kubernetes allows for a label and its value.
const (
	MaxTaints     = 64
	MaxTaintBytes = 317
)

// NewTaints makes taints of names, in any order. Repeated names count once.
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

// ValidTaint reports whether name is a valid taint: visible ASCII characters, no comma, at most
// MaxTaintBytes of them.
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

// Has reports whether name is one of the taints.
func (t Taints) Has(name string) bool {
	for rest := string(t); rest != ""; {
		taint, more, _ := strings.Cut(rest, ",")
		if taint == name {
			return true
		}
		rest = more
	}
	return false
}

// Names lists the taints, sorted.
func (t Taints) Names() []string {
	if t == "" {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(t), ","), ",")
}
