package xds

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/prototext"

	"github.com/stator-project/stator/internal/envoynames"
	"github.com/stator-project/stator/internal/fleet"
)

// snippetSettings are settings of a snippet that can be printed.
func snippetSettings(v Version, models ...string) SnippetSettings {
	return SnippetSettings{Version: v, Settings: Settings{
		ExtProc: []string{"127.0.0.1:9002"}, Models: models, MaxBodyBytes: 1 << 20, DecisionTimeout: time.Second, IdleTimeout: time.Minute,
		SessionHeaders: []string{"x-session-id"},
	}}
}

// TestSnippetOfVersions: each version gets the fields that it has, and replacements for the fields that it lacks. Every comment
// has its place in all of them.
func TestSnippetOfVersions(t *testing.T) {
	for v := oldestVersion; v <= newestVersion; v++ {
		for _, models := range [][]string{{"one"}, {"one", "two"}} {
			for _, control := range []string{"", "127.0.0.1:9003"} {
				s := snippetSettings(v, models...)
				s.XDS = control
				text, err := Snippet(s)
				if err != nil {
					t.Fatalf("%s, %s, %q: %v", v, models, control, err)
				}
				for part, want := range map[string]bool{
					"selected_host_key:":                         v >= 38,
					"request_body_buffer_limit: \"1048576\"":     true,
					"per_connection_buffer_limit_bytes: 1048576": v == 36,
					"type: EDS":              control != "",
					"name: stator-xds":       control != "",
					"address: 192.0.2.1":     control == "",
					"name: stator-undecided": len(models) > 1,
				} {
					if got := strings.Contains(string(text), part); got != want {
						t.Errorf("%s, %s, %q: %s is there: %t", v, models, control, part, got)
					}
				}
				var parsed map[string]any
				if err := yaml.Unmarshal(text, &parsed); err != nil {
					t.Errorf("%s: %v", v, err)
				}
			}
		}
	}
}

// TestSnippetForwardsRolesAndTenants: filters of an operator's own Envoy authenticate clients, so the
// headers that they set go to routers and count. Listeners of Stator's own forward no such header of clients that are not trusted.
func TestSnippetForwardsRolesAndTenants(t *testing.T) {
	s := snippetSettings(newestVersion, "one")
	s.RoleHeader, s.TenantHeader = "x-jwt-role", "x-jwt-tenant"
	text, err := Snippet(s)
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"exact: x-jwt-role", "exact: x-jwt-tenant", "authority: " + envoynames.SnippetAuthority} {
		if !strings.Contains(string(text), part) {
			t.Errorf("%s is not there", part)
		}
	}

	listener := prototext.Format(buildExtProc(s.Settings, audience{}))
	for _, part := range []string{"x-jwt-role", "x-jwt-tenant", envoynames.SnippetAuthority} {
		if strings.Contains(listener, part) {
			t.Errorf("a listener for all clients has %s", part)
		}
	}
}

// TestSnippetRefusesBadSettings checks addresses and that there is a model.
func TestSnippetRefusesBadSettings(t *testing.T) {
	for want, change := range map[string]func(*SnippetSettings){
		"no address of a router":            func(s *SnippetSettings) { s.ExtProc = nil },
		"no model is named":                 func(s *SnippetSettings) { s.Models = nil },
		`xds: address "localhost"`:          func(s *SnippetSettings) { s.XDS = "10.0.0.1:9003,localhost" },
		"worker of model sim: address \"\"": func(s *SnippetSettings) { s.Endpoints = map[string][]string{"sim": {""}} },
	} {
		s := snippetSettings(newestVersion, "sim")
		change(&s)
		if text, err := Snippet(s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q: %.100s", err, want, text)
		}
	}
}

// TestCommentsHaveTheirPlace: a comment on something that is not there is an error, and long texts are wrapped.
func TestCommentsHaveTheirPlace(t *testing.T) {
	c, err := buildPool("sim", Settings{})
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"nowhere", "name/deeper", "load_balancing_policy/policies/1", "load_balancing_policy/policies/x"} {
		var d document
		if err := d.addMessage("pool", "", c, []comment{{path, "text"}}); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", path, err)
		}
	}

	long := strings.Repeat("word ", 50)
	for line := range strings.SplitSeq(wrap(long+"\n\n  kept as it is\nlast"), "\n") {
		if len(line) > commentWidth || !strings.HasPrefix(line, "#") {
			t.Errorf("%q", line)
		}
	}
	if got := fmt.Sprintf("%q", wrap("a b\n  c d")); got != `"# a b\n#   c d"` {
		t.Error(got)
	}
}

// TestSnippetHasTLSToEngines: an Envoy of an operator has the certificates by their files, because it gets no secrets of Stator. Relays in its
// pools speak no TLS.
func TestSnippetHasTLSToEngines(t *testing.T) {
	s := snippetSettings(newestVersion, "sim")
	s.EngineTLS = PEMFiles{CA: "/tls/ca.crt", Cert: "/tls/tls.crt", Key: "/tls/tls.key"}
	s.EngineServerName = "engines.example"
	s.Endpoints = map[string][]string{"sim": {"10.0.0.1:8000", "10.0.0.1:8443"}}
	var err error
	if s.EnginesInClear, err = fleet.ParseAddresses([]string{":8000"}); err != nil {
		t.Fatal(err)
	}
	text, err := Snippet(s)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"filename: /tls/ca.crt", "filename: /tls/tls.crt", "filename: /tls/tls.key", "sni: engines.example",
		"exact: engines.example", "plain: true", "envoy.transport_socket_match:", "type.googleapis.com/envoy.extensions.transport_sockets.raw_buffer.v3.RawBuffer"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the snippet lacks %q:\n%s", want, text)
		}
	}
	if n := strings.Count(string(text), "envoy.transport_socket_match:"); n != 1 {
		t.Errorf("%d endpoints are reached without TLS, want 1:\n%s", n, text)
	}
	if strings.Contains(string(text), "sds_config") {
		t.Errorf("the snippet names a secret of Stator:\n%s", text)
	}
}
