package config

import (
	"fmt"
	"strings"
	"testing"
)

// TestParseKeys: each mistake in a file of keys is named by its entry, and no error has a key in it.
func TestParseKeys(t *testing.T) {
	const key = "0123456789abcdef"
	good := "- {tenant: red, key: " + key + "}\n"
	keys, err := ParseKeys([]byte(good + "- {tenant: red, key: " + key + "-second}\n"))
	if err != nil || len(keys) != 2 || keys[0] != (APIKey{"red", key}) {
		t.Error(keys, err)
	}

	var many strings.Builder
	for i := range maxKeys + 1 {
		fmt.Fprintf(&many, "- {tenant: red, key: %s%d}\n", key, i)
	}
	for text, want := range map[string]string{
		"":                                     "must be a list",
		"[]":                                   "must be a list",
		"red: " + key:                          "must be a list",
		"- {tenant: red, keys: " + key + "}":   "must be a list",
		many.String():                          "1 to 4096 entries",
		strings.Repeat("#", maxKeysFile+1):     "more than",
		good + good:                            "entry 2 has the key of entry 1",
		"- {tenant: red, key: short}":          "entry 1: the key must have 16",
		"- {tenant: red, key: eyJ" + key + "}": "not begin with",
		"- {tenant: red, key: \"" + key + " x\"}": "entry 1: the key",
		"- {key: " + key + "}":                    "entry 1: the tenant",
		"- {tenant: \"a,b\", key: " + key + "}":   "no comma",
		"- {tenant: \"a\\n\", key: " + key + "}":  "entry 1: the tenant",
	} {
		_, err := ParseKeys([]byte(text))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), key) {
			t.Errorf("%.60q: %v, want %q", text, err, want)
		}
	}
}

// TestCheckJWKS: a set has public keys only.
func TestCheckJWKS(t *testing.T) {
	if err := CheckJWKS([]byte(`{"keys": [{"kty": "EC", "x": "a", "y": "b"}]}`)); err != nil {
		t.Error(err)
	}
	for text, want := range map[string]string{
		"":                                     "must be a JSON Web Key Set",
		"[]":                                   "must be a JSON Web Key Set",
		`{"keys": []}`:                         "at least one key",
		`{"keys": [{"kty": "oct", "k": "a"}]}`: "is secret",
		`{"keys": [{"kty": "RSA", "d": "a"}]}`: "is secret",
		strings.Repeat(" ", MaxJWKS+1):         "more than",
	} {
		if err := CheckJWKS([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v, want %q", text, err, want)
		}
	}
}

// TestAuthSetsTenants: with authentication there are tenants, and the paths that engines cannot keep apart do not pass.
func TestAuthSetsTenants(t *testing.T) {
	const head = "apiVersion: stator.dev/v1alpha1\nkind: Stator\nmodels: [{name: m}]\n"
	c, err := Parse([]byte(head + "gateway: {auth: {keysFile: keys.yaml}}\n"))
	if err != nil {
		t.Fatal(err)
	}
	c.ResolveFiles("/etc/stator")
	if g := &c.Gateway; g.TenantHeader != authHeader || len(g.PassPaths) != len(saltedPaths) || g.Watched()[0] != "/etc/stator/keys.yaml" {
		t.Errorf("%+v", g)
	}

	issuer := func(text string) string { return "gateway: {auth: {jwt: [{" + text + "}]}}\n" }
	const good = "issuer: i, audiences: [a], jwksURL: \"https://i.example/keys\""
	for text, want := range map[string]string{
		issuer(good):                                                 "",
		issuer("audiences: [a], jwksFile: f"):                        "issuer: is required",
		issuer("issuer: i, jwksFile: f"):                             "audiences: must name",
		issuer("issuer: i, audiences: [a]"):                          "needs either",
		issuer(good + ", jwksFile: f"):                               "needs either",
		issuer(good + ", jwksCAFile: \"\""):                          "jwksCAFile: is required",
		issuer(good + ", tenantClaim: \"\""):                         "tenantClaim: must be",
		issuer("issuer: i, audiences: [a], jwksURL: \"http://i/k\""): "use a URL such as https://",
		issuer(strings.Repeat(good+"}, {", maxIssuers) + good):       "at most 16 issuers",
	} {
		_, err := Parse([]byte(head + text))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%.80s: %v, want %q", text, err, want)
		}
	}
}
