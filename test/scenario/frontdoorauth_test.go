package scenario

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stator-project/stator/test/testkit"
)

// The keys of two tenants, and one of nobody.
const (
	redKey    = "key-of-red-0123456789"
	blueKey   = "key-of-blue-0123456789"
	nobodyKey = "key-of-nobody-0123456789"
)

// writeKeys writes a file of keys.
func writeKeys(t *testing.T, keys string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "keys.yaml")
	if err := os.WriteFile(path, []byte(keys), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// signer signs tokens of one issuer.
type signer struct {
	t   *testing.T
	key *ecdsa.PrivateKey
}

func newSigner(t *testing.T) *signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return &signer{t, key}
}

// jwks returns the set with the public key.
func (s *signer) jwks() string {
	public, err := s.key.PublicKey.Bytes()
	if err != nil {
		s.t.Fatal(err)
	}
	part := base64.RawURLEncoding.EncodeToString
	return fmt.Sprintf(`{"keys":[{"kty":"EC","crv":"P-256","alg":"ES256","use":"sig","x":%q,"y":%q}]}`, part(public[1:33]), part(public[33:]))
}

// bearer returns the header with a token of claims, which replace the ones of a valid token.
func (s *signer) bearer(claims map[string]any) string {
	all := map[string]any{"iss": "https://issuer.example", "aud": "gateway", "org": map[string]any{"id": "red"},
		"exp": time.Now().Add(time.Hour).Unix()}
	for k, v := range claims {
		all[k] = v
	}
	payload, err := json.Marshal(all)
	if err != nil {
		s.t.Fatal(err)
	}

	text := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"ES256","typ":"JWT"}`)) + "." + base64.RawURLEncoding.EncodeToString(payload)
	sum := sha256.Sum256([]byte(text))
	r, v, err := ecdsa.Sign(rand.Reader, s.key, sum[:])
	if err != nil {
		s.t.Fatal(err)
	}
	signature := make([]byte, 64)
	r.FillBytes(signature[:32])
	v.FillBytes(signature[32:])
	return "Bearer " + text + "." + base64.RawURLEncoding.EncodeToString(signature)
}

// ask sends a prompt with headers.
func (g *gateway) ask(prompt string, headers ...string) reply {
	g.t.Helper()
	body := fmt.Appendf(nil, `{"model":"sim","max_tokens":1,"prompt":%q}`, prompt)
	r, err := g.send(g.t.Context(), http.MethodPost, "/v1/completions", body, headers...)
	if err != nil {
		g.t.Fatal(err)
	}
	return r
}

// decisions returns the number of requests about which the router has decided, whatever the outcome.
func (g *gateway) decisions() float64 { return g.metric("stator_extproc_requests_total") }

// admission is a request and the status that the gateway must answer.
type admission struct {
	name    string
	headers []string
	status  int
}

// assertAdmissions sends requests. Refused ones have OpenAI's form, and no router sees them.
func (g *gateway) assertAdmissions(list []admission) {
	g.t.Helper()
	for _, a := range list {
		before := g.decisions()
		r := g.ask("hello", a.headers...)
		if r.status != a.status {
			g.t.Errorf("%s: status %d, want %d: %s", a.name, r.status, a.status, r.body)
		}
		want := map[int]string{401: "invalid_api_key", 403: "not_allowed"}[a.status]
		if r.error.Code != want {
			g.t.Errorf("%s: %s", a.name, r.body)
		}
		if seen := g.decisions() - before; want != "" && seen > 0 {
			g.t.Errorf("%s: %v routers have seen the request", a.name, seen)
		}
	}
}

// TestKeysAdmitTenants: a client needs a key of the file, and is the tenant of its key whatever its headers say. A new file counts without a
// restart. Engines get no key, and no log and no page shows one.
func TestKeysAdmitTenants(t *testing.T) {
	t.Parallel()
	keys := writeKeys(t, fmt.Sprintf("- {tenant: red, key: %s}\n- {tenant: blue, key: %s}\n", redKey, blueKey))
	run := t.TempDir()
	g := upIn(t, run, "--log-level", "debug", "--config",
		configFile(t, fmt.Sprintf("gateway: {auth: {keysFile: %q}}\n", keys)+oneSim))

	g.assertAdmissions([]admission{
		{"no key", nil, 401},
		{"a wrong key", []string{"authorization", "Bearer " + nobodyKey}, 401},
		{"a wrong key in another header", []string{"x-api-key", nobodyKey}, 401},
		{"a name without a key", []string{"x-tenant", "red"}, 401},
		{"half a key", []string{"authorization", "Bearer " + redKey[:16]}, 401},
		{"a key as OpenAI's clients send it", []string{"authorization", "Bearer " + redKey}, 200},
		{"a key as Anthropic's clients send it", []string{"x-api-key", redKey}, 200},
		{"a key as Azure's clients send it", []string{"api-key", redKey}, 200},
	})

	// Blue says to be red, and does not find red's prompt in the cache.
	prompt := strings.Repeat("a prompt of several blocks ", 20)
	for i, step := range []struct {
		key    string
		cached bool
	}{{redKey, false}, {redKey, true}, {blueKey, false}, {blueKey, true}} {
		r := g.ask(prompt, "authorization", "Bearer "+step.key, "x-tenant", "red")
		if r.status != http.StatusOK || r.usage.Details.CachedTokens > 0 != step.cached {
			t.Errorf("step %d: %d cached tokens, status %d", i, r.usage.Details.CachedTokens, r.status)
		}
	}

	rewrite(t, keys, func(text string) string { return strings.Replace(text, redKey, nobodyKey, 1) })
	eventually(t, "the new key is admitted", func() error {
		if r := g.ask("hello", "api-key", nobodyKey); r.status != http.StatusOK {
			return errNotYet
		}
		return nil
	})
	g.assertAdmissions([]admission{{"the key that is gone", []string{"api-key", redKey}, 401}, {"the other one", []string{"api-key", blueKey}, 200}})

	rewrite(t, keys, func(string) string { return "- {tenant: red}\n" })
	eventually(t, "a wrong file is reported", func() error {
		if !strings.Contains(g.up.out.String(), "gateway.auth.keysFile") {
			return errNotYet
		}
		return nil
	})
	g.assertAdmissions([]admission{{"a key of the last file that was right", []string{"api-key", blueKey}, 200}})
	g.assertNoSecret(run, redKey, blueKey, nobodyKey)
}

// TestKeysAreNeverNone: a gateway whose file of keys is absent or empty does not start, because it would admit everyone. If the file
// vanishes or becomes empty later, the last keys stay in force. Refusals have OpenAI's form, and a refused upgrade is not taken for
// a token that is not allowed.
func TestKeysAreNeverNone(t *testing.T) {
	t.Parallel()
	keys := writeKeys(t, "")
	config := configFile(t, fmt.Sprintf("gateway: {auth: {keysFile: %q}}\n", keys)+oneSim)
	for name, remove := range map[string]bool{"empty": false, "absent": true} {
		if remove {
			if err := os.Remove(keys); err != nil {
				t.Fatal(err)
			}
		}
		for _, part := range [][]string{{"up", "--envoy", envoyPath(t)}, {"xds"}} {
			out, err := exec.Command(binary, append(part, "--config", config)...).CombinedOutput()
			if err == nil || !strings.Contains(string(out), "gateway.auth.keysFile "+keys) {
				t.Errorf("stator %s with a file that is %s: %v, %s", part[0], name, err, out)
			}
		}
	}

	good := fmt.Sprintf("- {tenant: red, key: %s}\n", redKey)
	if err := os.WriteFile(keys, []byte(good), 0o600); err != nil {
		t.Fatal(err)
	}
	g := up(t, "--config", config)
	admissions := []admission{
		{"no key", nil, 401}, {"an empty key", []string{"authorization", "Bearer "}, 401}, {"the key", []string{"api-key", redKey}, 200},
	}
	g.assertAdmissions(admissions)
	for _, step := range []struct {
		reported string
		change   func() error
	}{
		{"must be a list of 1 to", func() error { return os.WriteFile(keys, nil, 0o600) }},
		{"no such file", func() error { return os.Remove(keys) }},
	} {
		if err := step.change(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the file is reported: "+step.reported, func() error {
			if !strings.Contains(g.up.out.String(), step.reported) {
				return errNotYet
			}
			return nil
		})
		g.assertAdmissions(admissions)
	}

	for _, headers := range [][]string{nil, {"api-key", redKey}} {
		r, err := g.send(t.Context(), http.MethodGet, "/v1/models", nil, append(headers, "connection", "upgrade", "upgrade", "websocket")...)
		if err != nil || r.status != http.StatusForbidden || r.error.Message == "" || r.error.Code == "not_allowed" {
			t.Errorf("an upgrade with %q: status %d, %v: %s", headers, r.status, err, r.body)
		}
	}
}

// assertNoSecret fails if the output, a file of the run, a page, or Envoy's own pages have a secret.
func (g *gateway) assertNoSecret(run string, secrets ...string) {
	g.t.Helper()
	seen := map[string]string{"the log": g.up.out.String()}
	for _, page := range []string{"/metrics", "/debug/config", "/debug/decisions", "/debug/xds"} {
		text, err := g.read(page)
		if err != nil {
			g.t.Fatal(page, err)
		}
		seen[page] = text
	}
	sockets, err := filepath.Glob(filepath.Join(run, "stator-*", "gateway-0", "admin.sock"))
	if err != nil || len(sockets) != 1 {
		g.t.Fatal(sockets, err)
	}
	c := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", sockets[0])
	}}}
	for _, page := range []string{"/config_dump", "/stats", "/clusters"} {
		text, err := getBy(c, "http://envoy"+page)
		if err != nil {
			g.t.Fatal(page, err)
		}
		seen["Envoy's "+page] = text
	}
	if !strings.Contains(seen["Envoy's /config_dump"], "ApiKeyAuthPerRoute") {
		g.t.Error("the dump of Envoy does not show the filter")
	}
	_ = filepath.Walk(run, func(path string, info os.FileInfo, err error) error {
		if err == nil && info.Mode().IsRegular() {
			text, _ := os.ReadFile(path)
			seen[path] = string(text)
		}
		return nil
	})
	for where, text := range seen {
		for _, s := range secrets {
			if strings.Contains(text, s) {
				g.t.Errorf("%s has the secret %s", where, s)
			}
		}
	}
}

// TestTokensAdmitTenants: a token counts if an issuer has signed it, for this gateway, and it has not expired. Its claim is the tenant. Keys
// count beside tokens. The keys of issuers come from a file, or from a page, and may change.
func TestTokensAdmitTenants(t *testing.T) {
	t.Parallel()
	byFile, byPage, stranger := newSigner(t), newSigner(t), newSigner(t)
	set := filepath.Join(t.TempDir(), "jwks.json")
	if err := os.WriteFile(set, []byte(byFile.jwks()), 0o600); err != nil {
		t.Fatal(err)
	}
	page := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, byPage.jwks()) }))
	ca := testkit.NewAuthority(t)
	page.TLS = serverTLS(t, ca, "localhost")
	page.StartTLS()
	defer page.Close()
	_, port, err := net.SplitHostPort(page.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}

	issuer := func(name, keys string) string {
		return fmt.Sprintf("{issuer: %q, audiences: [gateway], tenantClaim: org.id, %s}", "https://"+name, keys)
	}
	file := configFile(t, fmt.Sprintf("gateway: {auth: {keysFile: %q, jwt: [%s, %s]}}\n",
		writeKeys(t, fmt.Sprintf("- {tenant: blue, key: %s}\n", blueKey)),
		issuer("issuer.example", fmt.Sprintf("jwksFile: %q", set)),
		issuer("page.example", fmt.Sprintf("jwksURL: 'https://localhost:%s/keys', jwksCAFile: %q", port, ca.CA())))+oneSim)
	g := up(t, "--config", file)

	hour, past := time.Now().Add(time.Hour).Unix(), time.Now().Add(-time.Hour).Unix()
	token := func(s *signer, claims map[string]any) []string { return []string{"authorization", s.bearer(claims)} }
	g.assertAdmissions([]admission{
		{"no token", nil, 401},
		{"a valid token", token(byFile, nil), 200},
		{"a valid token whose keys are on a page", token(byPage, map[string]any{"iss": "https://page.example"}), 200},
		{"a key", []string{"authorization", "Bearer " + blueKey}, 200},
		{"a wrong key", []string{"authorization", "Bearer " + nobodyKey}, 401},
		{"an expired token", token(byFile, map[string]any{"exp": past}), 401},
		{"a token that never expires", token(byFile, map[string]any{"exp": nil}), 401},
		{"a token that is not valid yet", token(byFile, map[string]any{"nbf": hour}), 401},
		{"a token that another has signed", token(stranger, nil), 401},
		{"a token of another issuer's name", token(byFile, map[string]any{"iss": "https://page.example"}), 401},
		{"a token of an unknown issuer", token(byFile, map[string]any{"iss": "https://unknown.example"}), 401},
		{"a token for another service", token(byFile, map[string]any{"aud": "other"}), 403},
		{"a token without a tenant, which asks for a key", token(byFile, map[string]any{"org": nil}), 401},
		{"a token with an empty tenant", token(byFile, map[string]any{"org": map[string]any{"id": ""}}), 401},
		{"the beginning of a token", []string{"authorization", "Bearer eyJhbGciOi"}, 401},
		{"a token in the place of a key", []string{"x-api-key", strings.TrimPrefix(byFile.bearer(nil), "Bearer ")}, 401},
		{"a token and the name of a tenant", append(token(stranger, nil), "x-tenant", "red"), 401},
	})

	rewrite(t, set, func(string) string { return stranger.jwks() })
	eventually(t, "the new key of the issuer counts", func() error {
		if r := g.ask("hello", token(stranger, nil)...); r.status != http.StatusOK {
			return errNotYet
		}
		return nil
	})
	g.assertAdmissions([]admission{{"a token by the key that is gone", token(byFile, nil), 401}})
}

// TestEnginesGetNoCredentials: a key or token ends at the gateway. The id of a request goes on to the engine and back to the client.
func TestEnginesGetNoCredentials(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var got http.Header
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		got = r.Header.Clone()
		_, _ = io.WriteString(w, `{"choices":[{"text":"hi"}]}`)
	}))
	defer engine.Close()
	issuer := newSigner(t)
	set := filepath.Join(t.TempDir(), "jwks.json")
	if err := os.WriteFile(set, []byte(issuer.jwks()), 0o600); err != nil {
		t.Fatal(err)
	}
	g := up(t, "--config", configFile(t, fmt.Sprintf(`
gateway: {auth: {keysFile: %q, jwt: [{issuer: "https://issuer.example", audiences: [gateway], tenantClaim: org.id, jwksFile: %q}]}}
models: [{name: sim, path: "builtin:sim", workers: [{name: w, address: %q, healthPath: none}]}]
`, writeKeys(t, "- {tenant: red, key: "+redKey+"}\n"), set, engine.Listener.Addr())))

	for _, headers := range [][]string{{"authorization", "Bearer " + redKey}, {"x-api-key", redKey}, {"authorization", issuer.bearer(nil)}} {
		for _, id := range []string{"id-of-the-client", ""} {
			if id != "" {
				headers = append(headers, "x-request-id", id)
			}
			r := g.ask("hello", headers...)
			if r.status != http.StatusOK {
				t.Fatalf("%s: status %d: %s", headers, r.status, r.body)
			}
			mu.Lock()
			for _, name := range []string{"authorization", "x-api-key", "api-key"} {
				if got.Get(name) != "" {
					t.Errorf("the engine gets %s", name)
				}
			}
			if back := r.header.Get("x-request-id"); back == "" || back != got.Get("x-request-id") || id != "" && back != id {
				t.Errorf("the client has the id %q, the engine %q, and the client sent %q", back, got.Get("x-request-id"), id)
			}
			mu.Unlock()
		}
	}
	if r := g.ask("hello"); r.status != http.StatusUnauthorized || r.header.Get("x-request-id") == "" {
		t.Errorf("an answer of %d has no id", r.status)
	}
}

// TestAccessLogOfPeople: every request has a line, refused ones too, and no line has a prompt, a query or a key.
func TestAccessLogOfPeople(t *testing.T) {
	t.Parallel()
	for _, to := range []string{filepath.Join(t.TempDir(), "access.log"), "stdout"} {
		g := up(t, "--config", configFile(t, fmt.Sprintf("gateway: {accessLog: %q, auth: {keysFile: %q}}\n", to,
			writeKeys(t, "- {tenant: red, key: "+redKey+"}\n"))+oneSim))
		prompt := strings.Repeat("a secret of several blocks ", 20)
		body := fmt.Appendf(nil, `{"model":"sim","max_tokens":4,"stream":true,"prompt":%q}`, prompt)
		for range 2 {
			r, err := g.send(t.Context(), http.MethodPost, "/v1/completions?api_key="+blueKey, body, "x-api-key", redKey, "x-request-id", "mine")
			if err != nil || r.status != http.StatusOK {
				t.Fatal(r, err)
			}
		}
		g.ask(prompt, "x-api-key", nobodyKey)

		var lines []map[string]any
		var text string
		eventually(t, "three lines are there", func() error {
			text = g.up.out.String()
			if to != "stdout" {
				data, _ := os.ReadFile(to) // it is not there before the first line
				text = string(data)
			}
			lines = nil
			for line := range strings.Lines(text) {
				var v map[string]any
				if json.Unmarshal([]byte(line), &v) == nil {
					lines = append(lines, v)
				}
			}
			if len(lines) != 3 {
				return fmt.Errorf("%d of 3", len(lines))
			}
			return nil
		})
		second, refused := lines[1], lines[2]
		for key, want := range map[string]any{"request_id": "mine", "tenant": "red", "model": "sim", "worker": "sim-0", "status": 200.0,
			"path": "/v1/completions", "method": "POST"} {
			if second[key] != want {
				t.Errorf("%s: %s is %v, want %v", to, key, second[key], want)
			}
		}
		for _, key := range []string{"decision", "first_token_ms", "duration_ms", "upstream", "cached_tokens", "prompt_tokens", "time"} {
			_, has := second[key]
			if key == "first_token_ms" && !has {
				continue // before Envoy 1.37
			}
			if second[key] == nil || second[key] == "0" {
				t.Errorf("%s: %s is %v", to, key, second[key])
			}
		}
		if refused["status"] != 401.0 || refused["decision"] != nil || refused["tenant"] != nil {
			t.Errorf("%s: the refused request is %v", to, refused)
		}
		for _, secret := range []string{redKey, blueKey, nobodyKey, "secret of"} {
			if strings.Contains(text, secret) {
				t.Errorf("%s has %q:\n%s", to, secret, text)
			}
		}
	}
}

// TestBrowsersMayCall: a browser learns without a key which pages may call, and scripts of these pages read the answers.
func TestBrowsersMayCall(t *testing.T) {
	t.Parallel()
	const page = "https://chat.example.com"
	g := up(t, "--config", configFile(t, fmt.Sprintf("gateway: {corsOrigins: [%q], auth: {keysFile: %q}}\n", page,
		writeKeys(t, "- {tenant: red, key: "+redKey+"}\n"))+oneSim))
	for _, c := range []struct {
		origin, key string
		preflight   bool
		status      int
		allowed     bool
	}{
		{page, "", true, 200, true},
		{"https://evil.example", "", true, 401, false},
		{page, redKey, false, 200, true},
		{page, "", false, 401, true},
		{"https://evil.example", redKey, false, 200, false},
	} {
		method, headers := http.MethodPost, []string{"origin", c.origin, "x-api-key", c.key}
		if c.preflight {
			method = http.MethodOptions
			headers = append(headers, "access-control-request-method", "POST", "access-control-request-headers", "authorization")
		}
		r, err := g.send(t.Context(), method, "/v1/completions", []byte(`{"model":"sim","max_tokens":1,"prompt":"hello"}`), headers...)
		if err != nil {
			t.Fatal(err)
		}
		if r.status != c.status || r.header.Get("access-control-allow-origin") == page != c.allowed {
			t.Errorf("%+v: status %d, headers %v", c, r.status, r.header)
		}
		if c.preflight && c.allowed && !strings.Contains(r.header.Get("access-control-allow-headers"), "authorization") {
			t.Errorf("%+v: headers %v", c, r.header)
		}
	}
}

// TestLimitsOfTenants: 64 clients of a tenant get as many requests as the limit and the time that has passed allow, and not one more. Another
// tenant has limits of its own. Refusals have the form and the header that OpenAI's clients wait by.
func TestLimitsOfTenants(t *testing.T) {
	t.Parallel()
	const limit = 30
	g := up(t, "--config", configFile(t, fmt.Sprintf(
		"gateway: {limits: {requestsPerMinute: %d, tenants: [{name: blue, promptTokensPerMinute: 50}]}, auth: {keysFile: %q}}\n", limit,
		writeKeys(t, fmt.Sprintf("- {tenant: red, key: %s}\n- {tenant: blue, key: %s}\n", redKey, blueKey)))+oneSim))

	began := time.Now()
	var mu sync.Mutex
	var clients sync.WaitGroup
	answers := map[int]int{}
	var refused reply
	for range 64 {
		clients.Go(func() {
			for range 3 {
				r := g.ask("hello", "x-api-key", redKey)
				mu.Lock()
				answers[r.status]++
				if r.status != http.StatusOK {
					refused = r
				}
				mu.Unlock()
			}
		})
	}
	clients.Wait()
	most := limit + int(limit*time.Since(began).Minutes())
	if n := answers[http.StatusOK]; n < limit || n > most || answers[http.StatusTooManyRequests] != 3*64-n {
		t.Errorf("the answers are %v; %d to %d requests may be served", answers, limit, most)
	}
	if refused.error.Code != "rate_limit_exceeded" || refused.error.Type != "requests" || refused.header.Get("retry-after") == "" {
		t.Errorf("%s %v", refused.body, refused.header)
	}

	long := strings.Repeat("a prompt of many tokens ", 100)
	if r := g.ask(long, "x-api-key", blueKey); r.status != http.StatusOK {
		t.Errorf("the first prompt of blue: %d: %s", r.status, r.body)
	}
	if r := g.ask("hello", "x-api-key", blueKey); r.status != http.StatusTooManyRequests || r.error.Type != "tokens" {
		t.Errorf("the second prompt of blue: %d: %s", r.status, r.body)
	}
	if got := g.metric("stator_extproc_requests_total", "outcome", "rate_limit_exceeded"); int(got) != answers[http.StatusTooManyRequests]+1 {
		t.Errorf("%v refusals are counted, and %d seen", got, answers[http.StatusTooManyRequests]+1)
	}
}
