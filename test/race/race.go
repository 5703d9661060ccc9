// Package race lets tests that need no race detector leave it out, and others play less under it.
package race

import (
	"os"
	"testing"
)

// Skip skips a test under the race detector. It is for long tests of code that starts no goroutine, in packages that have other tests
// with goroutines. `make test` runs the tests of such packages twice, with the race detector and without it, so the test is run.
func Skip(t testing.TB) {
	t.Helper()
	if enabled {
		t.Skip("it has no goroutines and takes long under the race detector: it runs without")
	}
}

// long is the variable by which `make test-long` plays all rounds under the race detector.
const long = "STATOR_TEST_LONG"

// Fewer returns how many rounds a long test plays: all without the race detector, and few under it, because those take ten times as
// long. `make test` runs the tests that call it both ways, and `make test-long` plays all rounds under the race detector.
func Fewer(few, all int) int {
	if enabled && os.Getenv(long) == "" {
		return few
	}
	return all
}
