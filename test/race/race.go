// Package race lets tests that need no race detector leave it out, and others play less under it.
package race

import "testing"

// Skip skips a test under the race detector. It is for long tests of code that starts no goroutine, in packages that have other tests
// with goroutines. `make test` runs the tests of such packages twice, with the race detector and without it, so the test is run.
func Skip(t testing.TB) {
	t.Helper()
	if enabled {
		t.Skip("it has no goroutines and takes long under the race detector: it runs without")
	}
}

// Fewer returns how many rounds a long test of random inputs plays: all without the race detector, and few under it. `make test` runs
// the tests that call it twice, too, and `make test-long` plays all rounds under the race detector.
func Fewer(few, all int) int {
	if enabled {
		return few
	}
	return all
}
