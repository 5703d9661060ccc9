package xds

import (
	"strings"
	"testing"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/encoding/prototext"
)

// TestAuthIsOfTheGatewaysListener: the listener for all authenticates, in an order in which a request without a tenant reaches no filter that
// reads bodies. The listener for trusted clients and an Envoy of an operator do not. No snippet has a key in it.
func TestAuthIsOfTheGatewaysListener(t *testing.T) {
	s := Settings{
		Listen: "127.0.0.1:80", TrustedListen: "127.0.0.1:81", ExtProc: []string{"127.0.0.1:9002"}, Models: []string{"m"}, SessionHeaders: []string{"x"},
		MaxBodyBytes: 1 << 20, TenantHeader: "x-tenant",
		Auth: Auth{Keys: []APIKey{{"red", "secret-key"}}, Issuers: []Issuer{{Name: "i", Audiences: []string{"a"}, JWKS: "{}", TenantClaim: "sub"}}},
	}
	r, err := buildTables(s)
	if err != nil {
		t.Fatal(err)
	}
	names := func(l *listenerv3.Listener) string { return strings.Join(filtersOf(t, l), " ") }
	const admit = "envoy.filters.http.jwt_authn stator.keys envoy.filters.http.rbac "
	if all, trusted := names(r.Listeners[0]), names(r.Listeners[1]); all != admit+trusted {
		t.Errorf("filters %s, and for trusted clients %s", all, trusted)
	}
	for i, want := range []bool{true, false} {
		a := audience{trusted: !want}
		removed := false
		for _, m := range forgedHeaders(s, a) {
			removed = removed || m.GetRemoveOnMatch().GetKeyMatcher().GetExact() == "x-tenant"
		}
		if removed != want {
			t.Errorf("%d: the header of the tenant is removed: %t", i, removed)
		}
	}
	if text := prototext.Format(r.Routes[0]); !strings.Contains(text, "secret-key") {
		t.Error("the routes lack the key")
	}

	text, err := Snippet(SnippetSettings{Settings: s, Version: newestVersion})
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(text), "secret-key") || strings.Contains(string(text), "jwt_authn") {
		t.Errorf("the snippet authenticates:\n%s", text)
	}
}

// TestServersOfKeys: Envoys reach the page of an issuer's keys with TLS, at its port, and check its certificate.
func TestServersOfKeys(t *testing.T) {
	for page, want := range map[string]string{"https://i.example/keys": "port_value: 443 ", "https://i.example:8443/keys": "port_value: 8443 "} {
		list, err := buildJWKSClusters(Auth{Issuers: []Issuer{{Name: "by file"}, {Name: "i", URL: page, CAFile: "/ca.crt"}}})
		if err != nil || len(list) != 1 {
			t.Fatal(list, err)
		}
		text := strings.Join(strings.Fields(prototext.Format(list[0])), " ") // which varies its white space
		for _, part := range []string{want, `"stator-jwks-1"`, "/ca.crt", `exact: "i.example"`} {
			if !strings.Contains(text, part) {
				t.Errorf("%s: no %s in\n%s", page, part, text)
			}
		}
	}
}

// TestLinesOfVersions: an Envoy without the operator for the time of the first token has lines without it, and only gateways with tenants
// name them.
func TestLinesOfVersions(t *testing.T) {
	for v := oldestVersion; v <= newestVersion; v++ {
		for _, header := range []string{"", "x-tenant"} {
			line := lineOf(Settings{TenantHeader: header}, v).Fields
			if line["first_token_ms"] != nil != (v >= 37) || line["tenant"] != nil != (header != "") || line["decision"] == nil {
				t.Errorf("%s, %q: %v", v, header, line)
			}
		}
	}
}
