package fleet

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Adapters are the LoRA adapters that a worker's engine has loaded, by the names that it serves them under. They are one
// string so that workers can be compared with ==:
//
//	""           unknown: the engine does not list its adapters, or was not asked yet
//	"\n"         none
//	"\na\nb\n"   a and b: sorted, each once
type Adapters string

// Bounds of a worker's adapters: how many, the bytes of a name, and the bytes of them all. A lease holds them, and it must
// stay much smaller than a message of the bus.
const (
	MaxAdapters     = 1024
	MaxAdapterBytes = 256
	maxAllAdapters  = 64 << 10
)

// NewAdapters makes the adapters of an engine of their names, in any order. Repeated names count once. Names that cannot be used, and names
// beyond the bounds, are left out; skipped counts them.
func NewAdapters(names []string) (a Adapters, skipped int) {
	sorted := slices.Compact(slices.Sorted(slices.Values(names)))
	var b strings.Builder
	b.WriteByte('\n')
	kept := 0
	for _, name := range sorted {
		if !ValidAdapter(name) || kept == MaxAdapters || b.Len()+len(name) >= maxAllAdapters {
			skipped++
			continue
		}
		b.WriteString(name)
		b.WriteByte('\n')
		kept++
	}
	return Adapters(b.String()), skipped
}

// ValidAdapter reports whether name can be the name of an adapter: 1 to MaxAdapterBytes of UTF-8 without control characters.
func ValidAdapter(name string) bool {
	return name != "" && len(name) <= MaxAdapterBytes && utf8.ValidString(name) && !strings.ContainsFunc(name, unicode.IsControl)
}

// Known reports whether the engine lists its adapters.
func (a Adapters) Known() bool { return a != "" }

// Has reports whether name is one of the adapters. It is false if they are unknown.
func (a Adapters) Has(name string) bool {
	rest := strings.TrimPrefix(string(a), "\n")
	for rest != "" {
		adapter, more, _ := strings.Cut(rest, "\n")
		if adapter == name {
			return true
		}
		rest = more
	}
	return false
}

// Names lists the adapters, sorted.
func (a Adapters) Names() []string {
	names := strings.Trim(string(a), "\n")
	if names == "" {
		return nil
	}
	return strings.Split(names, "\n")
}

// errAdapters is the error of adapters that NewAdapters has not made.
var errAdapters = errors.New("they must be sorted, no two equal, and within the bounds")

// validate returns an error for adapters that NewAdapters would not have made.
func (a Adapters) validate() error {
	if !a.Known() {
		return nil
	}
	if again, skipped := NewAdapters(a.Names()); skipped > 0 || again != a {
		return fmt.Errorf("adapters %.100q: %w", string(a), errAdapters)
	}
	return nil
}
