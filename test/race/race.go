// Package race lets tests that need no race detector leave it out.
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
