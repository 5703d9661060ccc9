package blockhash

import "testing"

// TestHashInPlaceAndCopied: the hash of tokens in place equals that of a copy in little endian.
func TestHashInPlaceAndCopied(t *testing.T) {
	tokens := []uint32{1, 1 << 31, 0xdeadbeef, 0}
	for n := range len(tokens) + 1 {
		if got, want := Hash(tokens[:n], seed), hashCopied(tokens[:n], seed); got != want {
			t.Errorf("%d tokens: %x in place, %x copied", n, got, want)
		}
	}
}
