package request

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
)

// Salting separates the cached prompts of tenants.
type Salting struct {
	// SaltKey gives the prompt a cache salt that only this tenant has, by this key: see Decision.CacheSalt. Requests without a
	// tenant are one tenant. Nil means no salts. It must not change during Decide.
	SaltKey []byte
	// NeedsSalt means that only engines may get the request that are known to take a cache salt at its endpoint.
	NeedsSalt bool
}

// saltBytes is the length of a tenant's salt before it is written in hex.
const saltBytes = 16

// TenantSalt returns the cache salt of a tenant's prompts, by a key that clients do not have: so none of them can compute a salt, its own
// included. A salt that the client has set separates its caches further, within the caches of its tenant. No client can choose a salt that
// is another tenant's, because every salt passes through the hash.
func TenantSalt(key []byte, tenant, own string) string {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(tenant))
	h.Write([]byte{0}) // header values have no NUL, so no two pairs are written alike
	h.Write([]byte(own))
	return hex.EncodeToString(h.Sum(nil)[:saltBytes])
}
