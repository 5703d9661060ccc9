package main

import "testing"

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

// TestReport: measurements are lines that benchstat reads.
func TestReport(t *testing.T) {
	var r report
	r.begin("internal/route")
	r.addMeasurement("BenchmarkDecide/ranks=10", 100, 1234.5, 1300)
	want := "pkg: internal/route\nBenchmarkDecide/ranks=10\t100\t1234.50 cpu-ns/op\n"
	if got := r.base.String(); got != want || r.count != 1 {
		t.Errorf("%q, %d measurements, want %q", got, r.count, want)
	}
}
