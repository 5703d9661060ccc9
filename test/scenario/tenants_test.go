package scenario

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// TestTenantsShareNoCache: with a header for tenants, the second request of a tenant finds its prompt in the cache,
// and another tenant does not, not even with the first one's name as its salt. On the listener for all clients the
// header does not count.
func TestTenantsShareNoCache(t *testing.T) {
	t.Parallel()
	address := freeAddress(t)
	g := up(t, "--config", configFile(t, fmt.Sprintf(`
gateway: {trustedListen: %q, tenantHeader: x-tenant}
models:
- name: sim
  path: "builtin:sim"
  launch: [{engine: sim, count: 1}]
`, address)))
	trusted := &gateway{t: t, url: "http://" + address, admin: g.admin}

	prompt := strings.Repeat("a prompt of several blocks ", 20)
	cached := func(g *gateway, more string, headers ...string) int {
		t.Helper()
		body := fmt.Appendf(nil, `{"model":"sim","max_tokens":1,"prompt":%q%s}`, prompt, more)
		r, err := g.send(t.Context(), http.MethodPost, "/v1/completions", body, headers...)
		if err != nil || r.status != http.StatusOK {
			t.Fatalf("status %d, %v: %s", r.status, err, r.body)
		}
		return r.usage.Details.CachedTokens
	}
	for i, step := range []struct {
		name, more string
		from       *gateway
		tenant     string
		cached     bool
	}{
		{"the first request of red", "", trusted, "red", false},
		{"the second request of red", "", trusted, "red", true},
		{"the first request of blue", "", trusted, "blue", false},
		{"blue with the salt red", `,"cache_salt":"red"`, trusted, "blue", false},
		{"a stranger who says to be red", "", g, "red", false},
		{"the stranger again", "", g, "blue", true},
		{"red again", "", trusted, "red", true},
	} {
		if n := cached(step.from, step.more, "x-tenant", step.tenant); (n > 0) != step.cached {
			t.Errorf("%d, %s: %d cached tokens", i, step.name, n)
		}
	}
	g.assertServed(7)
}
