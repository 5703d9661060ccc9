package fleet

import (
	"slices"
	"strings"
	"testing"
)

func TestTaints(t *testing.T) {
	a, err := NewTaints([]string{"zone=b", "fast", "zone=b"})
	if err != nil {
		t.Fatal(err)
	}
	b, _ := NewTaints([]string{"fast", "zone=b"})
	if a != b || !slices.Equal(a.Names(), []string{"fast", "zone=b"}) {
		t.Errorf("%q and %q", a, b)
	}
	for name, want := range map[string]bool{"fast": true, "zone=b": true, "zone": false, "b": false, "": false, "fast,zone=b": false} {
		if a.Has(name) != want {
			t.Errorf("%q has %q: %v", a, name, !want)
		}
	}
	if none, err := NewTaints(nil); err != nil || none != "" || none.Has("") || none.Names() != nil {
		t.Errorf("none: %q, %v", none, err)
	}
	many := make([]string, MaxTaints+1)
	for _, bad := range [][]string{{""}, {"a,b"}, {"a b"}, {"ä"}, {strings.Repeat("x", MaxTaintBytes+1)}, many} {
		if _, err := NewTaints(bad); err == nil {
			t.Errorf("%.20q is taken", bad)
		}
	}
}
