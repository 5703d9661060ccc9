package scenario

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
)

const chatPath = "/v1/chat/completions"

// TestBadRequestsGetOpenAIErrors: the answer has OpenAI's shape and names what to change, and no engine gets the request.
func TestBadRequestsGetOpenAIErrors(t *testing.T) {
	t.Parallel()
	g := up(t, "--config", configFile(t, `
gateway: {maxBodyBytes: 2097152}
models:
- name: sim
  path: "builtin:sim"
  launch: [{engine: sim, count: 2}]
`))
	big := `{"model":"sim","prompt":"` + strings.Repeat("x", 2<<20) + `"}`
	cases := []struct {
		name, method, path, body string
		headers                  []string
		status                   int
		want                     string // in the message
		param                    string
	}{
		{"an unknown model", "POST", chatPath, `{"model":"nobody","messages":[{"role":"user","content":"hi"}]}`, nil, 404, "`nobody` does not exist", "model"},
		{"no model", "POST", chatPath, `{"messages":[{"role":"user","content":"hi"}]}`, nil, 400, "model", "model"},
		{"malformed JSON", "POST", chatPath, `{"model":"sim","messages":[`, nil, 400, "JSON", ""},
		{"not an object", "POST", chatPath, `[1,2]`, nil, 400, "object", ""},
		{"an empty body", "POST", chatPath, ``, nil, 400, "JSON", ""},
		{"a wrong type", "POST", chatPath, `{"model":"sim","messages":"hi"}`, nil, 400, "messages", "messages"},
		{"a wrong type deep inside", "POST", chatPath, `{"model":"sim","messages":[{"role":"user","content":7}]}`, nil, 400, "content", "messages[0].content"},
		{"invalid UTF-8", "POST", chatPath, "{\"model\":\"sim\",\"messages\":[{\"role\":\"user\",\"content\":\"\xff\"}]}", nil, 400, "UTF-8", ""},
		{"a prompt longer than the context", "POST", "/v1/completions", `{"model":"sim","prompt":[` + strings.Repeat("1,", 131_100) + `1]}`, nil, 400, "maximum context length is 131072 tokens", "input_tokens"},
		{"a body over the limit", "POST", "/v1/completions", big, nil, 413, "2097152", ""},
		{"gzip that is none", "POST", chatPath, `{"model":"sim"}`, []string{"content-encoding", "gzip"}, 400, "JSON", ""},
		{"gzip over the limit", "POST", "/v1/completions", string(zip(t, big)), []string{"content-encoding", "gzip"}, 413, "2097152", ""},
		{"another encoding", "POST", chatPath, `{"model":"sim"}`, []string{"content-encoding", "deflate"}, 415, "gzip", ""},
		{"a wrong method", "GET", chatPath, ``, nil, 405, "POST", ""},
		{"a post to models", "POST", "/v1/models", `{}`, nil, 405, "GET", ""},
		{"a model that is not there", "GET", "/v1/models/nobody", ``, nil, 404, "nobody", "model"},
	}
	for _, c := range cases {
		r, err := g.send(t.Context(), c.method, c.path, []byte(c.body), c.headers...)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if r.status != c.status || !strings.Contains(r.error.Message, c.want) || r.error.Type == "" || r.error.Param != c.param {
			t.Errorf("%s: status %d, want %d and %q, param %q: %s", c.name, r.status, c.status, c.want, c.param, r.body)
		}
		if ct := r.header.Get("content-type"); !strings.HasPrefix(ct, "application/json") {
			t.Errorf("%s: content-type %q", c.name, ct)
		}
	}
	if n := g.metric("stator_extproc_requests_total", `outcome="picked"`); n != 0 {
		t.Errorf("%g bad requests reached an engine", n)
	}
	g.assertNothingBooked()
}

func zip(t *testing.T, text string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestLocalAndUnknownPaths: the router answers some paths itself, and sends those that pass to an engine.
func TestLocalAndUnknownPaths(t *testing.T) {
	t.Parallel()
	g := up(t, "--config", configFile(t, `
gateway: {passPaths: [/version, /tokenize]}
models: [{name: sim, path: "builtin:sim", launch: [{engine: sim, count: 2}]}]
`))
	for path, want := range map[string]string{
		"/v1/models":     `"id":"sim"`,
		"/v1/models/sim": `"id":"sim"`,
		"/health":        `"status":"ok"`,
		"/live":          `"status":"ok"`,
		"/openapi.json":  `"openapi"`,
		"/v1/models?x=1": `"object":"list"`,
	} {
		r, err := g.send(t.Context(), http.MethodGet, path, nil)
		if err != nil || r.status != 200 || !strings.Contains(r.body, want) || !json.Valid([]byte(r.body)) {
			t.Errorf("%s: status %d, %v: %s", path, r.status, err, r.body)
		}
		if r.decision != "" {
			t.Errorf("%s: answered by a worker", path)
		}
	}
	r, err := g.send(t.Context(), http.MethodGet, "/version", nil)
	if err != nil || r.status != 200 || r.decision == "" {
		t.Errorf("an unknown path without a body: status %d, decision %q, %v: %s", r.status, r.decision, err, r.body)
	}
	r, err = g.send(t.Context(), http.MethodPost, "/tokenize", []byte(`{"model":"sim","prompt":"hello"}`))
	if err != nil || r.status != 200 || r.decision == "" {
		t.Errorf("an unknown path with a body: status %d, decision %q, %v: %s", r.status, r.decision, err, r.body)
	}
	r, err = g.send(t.Context(), http.MethodPost, "/v1/embeddings", []byte(`{"model":"sim","input":["a","b"]}`))
	if err != nil || r.status != 200 || r.decision == "" {
		t.Errorf("embeddings: status %d, decision %q, %v: %s", r.status, r.decision, err, r.body)
	}
	scored, err := g.send(t.Context(), http.MethodPost, "/v1/completions", []byte(`{"model":"sim","max_tokens":0,"echo":true,"prompt":"a text to score"}`))
	if err != nil || scored.status != 200 || scored.text != "a text to score" {
		t.Errorf("a text to score: status %d, %v: %s", scored.status, err, scored.body)
	}
	zipped := zip(t, `{"model":"sim","max_tokens":3,"prompt":"compressed"}`)
	r, err = g.send(t.Context(), http.MethodPost, "/v1/completions", zipped, "content-encoding", "gzip")
	if err != nil || r.status != 200 || r.usage.PromptTokens == 0 {
		t.Errorf("a gzip body: status %d, %v: %s", r.status, err, r.body)
	}
	g.assertServed(5)
}

// TestForgedHeadersAreRemoved: a client cannot choose its worker by sending the router's headers.
func TestForgedHeadersAreRemoved(t *testing.T) {
	t.Parallel()
	g := up(t)
	r, err := g.send(t.Context(), http.MethodPost, "/v1/completions", []byte(`{"model":"sim","max_tokens":1,"prompt":"hi"}`),
		"x-gateway-destination-endpoint", "127.0.0.1:1", "x-stator-model", "other", "x-stator-decision", "forged")
	if err != nil || r.status != 200 || r.decision == "" || r.decision == "forged" {
		t.Errorf("status %d, decision %q, %v: %s", r.status, r.decision, err, r.body)
	}
	g.assertServed(1)
}

// TestUnknownPathsRejected: where unknown paths are refused, the answer has OpenAI's shape.
func TestUnknownPathsRejected(t *testing.T) {
	t.Parallel()
	g := up(t, "--config", configFile(t, `
gateway: {passPaths: []}
models:
- name: sim
  path: "builtin:sim"
  launch: [{engine: sim}]
`))
	r, err := g.send(t.Context(), http.MethodGet, "/v2/anything", nil)
	if err != nil || r.status != 404 || r.error.Code != "unknown_url" {
		t.Errorf("status %d, %v: %s", r.status, err, r.body)
	}
}
