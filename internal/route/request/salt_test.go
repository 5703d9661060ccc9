package request

import (
	"crypto/sha256"
	"encoding/hex"
	"testing"
)

// TestTenantSalts: tenants and salts of clients are separated from each other, and a tenant's salt is the same each
// time. Another key has other salts. Without the key no salt can be computed.
func TestTenantSalts(t *testing.T) {
	key, next := []byte("0123456789abcdef"), []byte("fedcba9876543210")
	seen := map[string][2]string{}
	pairs := [][2]string{{"", ""}, {"a", ""}, {"b", ""}, {"a", "own"}, {"b", "own"}, {"", "own"}, {"aown", ""}, {"", TenantSalt(key, "a", "")}}
	for _, k := range [][]byte{key, next} {
		for _, c := range pairs {
			salt := TenantSalt(k, c[0], c[1])
			if before, twice := seen[salt]; twice || salt == "" {
				t.Errorf("%q and %q have the salt %q", c, before, salt)
			}
			seen[salt] = c
			if TenantSalt(k, c[0], c[1]) != salt {
				t.Errorf("%q has two salts", c)
			}

			guessed := sha256.Sum256([]byte(c[0] + "\x00" + c[1]))
			if salt == hex.EncodeToString(guessed[:saltBytes]) {
				t.Errorf("a client can compute the salt of %q", c)
			}
		}
	}
}
