package main

import (
	"math"
	"testing"
)

// TestInterval compares with figures computed by hand: values 1, 2, 3 have mean 2, deviation 1, and
// 4.303 as the quantile of two degrees.
func TestInterval(t *testing.T) {
	center, half := interval([]float64{1, 2, 3})

	if want := 4.303 / math.Sqrt(3); center != 2 || math.Abs(half-want) > 1e-9 {
		t.Errorf("%g ± %g, want 2 ± %g", center, half, want)
	}
	if _, half := interval([]float64{1}); !math.IsInf(half, 1) {
		t.Errorf("one value has an interval of ± %g", half)
	}
}

// TestQuantile checks the continuation of the table beside published values.
func TestQuantile(t *testing.T) {
	for degrees, want := range map[int]float64{9: 2.262, 20: 2.086, 30: 2.042, 60: 2.000, 120: 1.980} {
		if got := quantile(degrees); math.Abs(got-want) > 0.002 {
			t.Errorf("%d degrees: %g, want %g", degrees, got, want)
		}
	}
}

// TestExactly: names of sub-benchmarks have characters that mean something in a pattern.
func TestExactly(t *testing.T) {
	if got, want := exactly("BenchmarkDecide/ranks=10/policy=kv+x"), `^BenchmarkDecide$/^ranks=10$/^policy=kv\+x$`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// TestPairs: a package that moved is looked for under its former name.
func TestPairs(t *testing.T) {
	got := pairs("a/new,b,c=d", "a/new=a/old", t.TempDir())

	want := []pair{{"a/new", "a/old"}, {"b", "b"}, {"c", "d"}}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("pair %d is %v, want %v", i, got[i], want[i])
		}
	}
}
