package route

import "testing"

// TestTenantSalts: tenants and salts of clients are separated from each other, and a tenant's salt is the same each
// time.
func TestTenantSalts(t *testing.T) {
	seen := map[string][2]string{}
	for _, c := range [][2]string{{"a", ""}, {"b", ""}, {"a", "own"}, {"b", "own"}, {"", "own"}, {"aown", ""}, {"", tenantSalt("a", "")}} {
		salt := tenantSalt(c[0], c[1])
		if before, twice := seen[salt]; twice || salt == "" {
			t.Errorf("%q and %q have the salt %q", c, before, salt)
		}
		seen[salt] = c
		if tenantSalt(c[0], c[1]) != salt {
			t.Errorf("%q has two salts", c)
		}
	}
	if salt := tenantSalt("", ""); salt != "" {
		t.Errorf("without a tenant and a salt there is the salt %q", salt)
	}
}
