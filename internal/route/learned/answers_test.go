package learned

import "testing"

// TestSessionHashRepeats: the hash depends on nothing but the seed and the name, so that a replay with the same seed has the same
// result in every process.
func TestSessionHashRepeats(t *testing.T) {
	for name, want := range map[string]uint64{"": 0, "talk-1": 0xe1ffa50fa1a1091b} {
		if got := SessionHash(7, name); got != want {
			t.Errorf("%q: %#x, want %#x", name, got, want)
		}
	}
	if SessionHash(7, "talk-1") == SessionHash(8, "talk-1") {
		t.Error("another seed has the same hash")
	}
}
