package fleet

import (
	"slices"
	"strconv"
	"strings"
	"testing"
)

func TestAdapters(t *testing.T) {
	a, skipped := NewAdapters([]string{"org/poet", "lawyer", "org/poet", "", "two\nlines", "\xff", strings.Repeat("x", MaxAdapterBytes+1)})
	b, _ := NewAdapters([]string{"lawyer", "org/poet"})
	if a != b || skipped != 4 || !slices.Equal(a.Names(), []string{"lawyer", "org/poet"}) || !a.Known() {
		t.Errorf("%q and %q, %d skipped", a, b, skipped)
	}
	for name, want := range map[string]bool{"org/poet": true, "lawyer": true, "poet": false, "law": false, "": false, "lawyer\norg/poet": false} {
		if a.Has(name) != want {
			t.Errorf("%q has %q: %v", a, name, !want)
		}
	}

	none, skipped := NewAdapters(nil)
	if skipped != 0 || !none.Known() || none.Has("") || none.Names() != nil || none == "" {
		t.Errorf("none: %q", none)
	}
	var unknown Adapters
	if unknown.Known() || unknown.Has("a") || unknown.Names() != nil {
		t.Error("unknown adapters are known")
	}
}

// TestAdaptersAreBounded: neither many names nor long ones make a lease that the bus refuses.
func TestAdaptersAreBounded(t *testing.T) {
	var many, long []string
	for i := range MaxAdapters + 10 {
		many = append(many, strconv.Itoa(i))
		long = append(long, strings.Repeat("x", MaxAdapterBytes-5)+strconv.Itoa(10_000+i))
	}
	for _, names := range [][]string{many, long} {
		a, skipped := NewAdapters(names)
		if kept := len(a.Names()); kept+skipped != len(names) || kept > MaxAdapters || len(a) > maxAllAdapters || a.validate() != nil {
			t.Errorf("%d adapters kept, %d skipped, in %d bytes: %v", kept, skipped, len(a), a.validate())
		}
	}
}

// TestWorkerWithWrongAdapters: adapters of a lease must be as NewAdapters makes them, or two equal workers differ.
func TestWorkerWithWrongAdapters(t *testing.T) {
	for adapters, right := range map[Adapters]bool{
		"": true, "\n": true, "\na\n": true, "\na\nb\n": true,
		"a": false, "\na": false, "\nb\na\n": false, "\na\na\n": false, "\n\n": false, "\n\xff\n": false,
		Adapters("\n" + strings.Repeat("x", MaxAdapterBytes+1) + "\n"): false,
	} {
		w := Worker{Name: "w", Model: "m", Address: "10.0.0.1:80", Ranks: 1, Adapters: adapters}
		if err := w.Validate(); (err == nil) != right {
			t.Errorf("%q: %v", adapters, err)
		}
	}
}
