package blockhash_test

import (
	"testing"

	"github.com/zeebo/xxh3"

	"github.com/stator-project/stator/internal/kv/blockhash"
)

// TestMediaHashesFollowDynamo: a medium's hash is 64 bits of its identifier.
func TestMediaHashesFollowDynamo(t *testing.T) {
	for _, tt := range []struct {
		identifier string
		want       uint64
	}{
		{"0123456789abcdef00112233445566778899aabbccddeefffedcba9876543210", 0x0123456789abcdef}, // Dynamo's two
		{"0123456789abcdef000000000000000000000000000000000000000000000000", 0x0123456789abcdef},
		{"FEDCBA9876543210000000000000000000000000000000000000000000000000", 0xfedcba9876543210},
		{"0123456789abcdef", xxh3.HashString("0123456789abcdef")}, // these are no media to Dynamo
		{"0123456789abcdef0011223344556677 899aabbccddeefffedcba9876543210", xxh3.HashString("0123456789abcdef0011223344556677 899aabbccddeefffedcba9876543210")},
		{"123", xxh3.HashString("123")},
		{"not_a_hash", xxh3.HashString("not_a_hash")},
	} {
		if got := blockhash.MediaHash(tt.identifier); got != tt.want {
			t.Errorf("%s: %x, want %x", tt.identifier, got, tt.want)
		}
	}
}
