package fleet

import (
	"testing"
)

// TestShared: the level of two workers is the narrowest place that both are known to share. Equal names of racks in two zones are
// different racks.
func TestShared(t *testing.T) {
	for _, c := range []struct {
		a, b []string
		want Level
	}{
		{nil, nil, Apart},
		{[]string{"zone=a"}, nil, Apart},
		{[]string{"zone=a"}, []string{"zone=b"}, Apart},
		{[]string{"zone=a"}, []string{"zone=a", "fast"}, InZone},
		{[]string{"zone=a", "rack=7"}, []string{"zone=a", "rack=8"}, InZone},
		{[]string{"zone=a", "rack=7"}, []string{"zone=a"}, InZone},
		{[]string{"zone=a", "rack=7"}, []string{"zone=a", "rack=7"}, InRack},
		{[]string{"zone=a", "rack=7"}, []string{"zone=b", "rack=7"}, Apart},
		{[]string{"zone=a", "rack=7"}, []string{"rack=7"}, InRack},
		{[]string{"rack=7"}, []string{"rack=8"}, Apart},
		{[]string{"zone=a", "nvlink=u.0"}, []string{"zone=a", "nvlink=u.0"}, InNVLink},
		{[]string{"zone=a", "rack=7", "nvlink=u.0"}, []string{"zone=a", "rack=8", "nvlink=u.0"}, InNVLink}, // one with two switches
		{[]string{"nvlink=u.0"}, []string{"nvlink=u.1"}, Apart},
		{[]string{"zone="}, []string{"zone="}, Apart},
		{[]string{"zoned=a"}, []string{"zoned=a"}, Apart},
	} {
		a, b := placeOf(t, c.a...), placeOf(t, c.b...)
		if there, back := a.Shared(&b), b.Shared(&a); there != c.want || back != c.want {
			t.Errorf("%v and %v: %v and %v, want %v", c.a, c.b, there, back, c.want)
		}
	}
}

// TestPlaceOfTaints: a place has the levels that taints name, in the order from the widest to the narrowest.
func TestPlaceOfTaints(t *testing.T) {
	p := placeOf(t, "rack=7", "long-context", "nvlink=u.0", "zone=a", "zone=b")
	if got := p.String(); got != "zone=a rack=7 nvlink=u.0" || !p.IsKnown() {
		t.Errorf("%q", got)
	}
	if p := placeOf(t, "long-context", "region=x"); p.IsKnown() || p.String() != "" {
		t.Errorf("%q without a taint of a level", p.String())
	}
	for level := Apart; level < Levels; level++ {
		text, _ := level.MarshalText()
		var again Level
		if err := again.UnmarshalText(text); err != nil || again != level || level.Phrase() == "" {
			t.Errorf("%s became %s, %v", level, again, err)
		}
	}
}

// TestSnapshotsHavePlaces: the place of a worker follows its taints when they change.
func TestSnapshotsHavePlaces(t *testing.T) {
	f := New(Hooks{})
	w := Worker{Name: "a", Model: "m", Address: "10.0.0.1:80", Ranks: 1}
	for _, zone := range []string{"", "zone=a,", "zone=b,"} {
		w.Taints = Taints(zone)
		if _, err := f.Put(w); err != nil {
			t.Fatal(err)
		}
		if got, want := f.Snapshot().Worker("a").Place(), PlaceOf(w.Taints); got != want {
			t.Errorf("%q: %q", zone, got.String())
		}
	}
	if changed, err := f.Put(w); changed || err != nil {
		t.Errorf("the same worker changes the fleet, or not: %v, %v", changed, err)
	}
}

func placeOf(t *testing.T, names ...string) Place {
	t.Helper()
	taints, err := NewTaints(names)
	if err != nil {
		t.Fatal(err)
	}
	return PlaceOf(taints)
}
