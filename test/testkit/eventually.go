package testkit

import (
	"testing"
	"time"
)

// patience is the time for which Eventually waits. It is long, because test machines are slow at times, and a
// test that passes does not wait for it.
const patience = 60 * time.Second

// Eventually polls ok every 2 ms until it returns true, and fails the test when that takes more than
// 60 s. what completes the sentence "not within 1m0s: …".
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()

	for deadline := time.Now().Add(patience); !ok(); {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", patience, what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}
