package scenario

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// spoken is an answer of an engine, in pieces, and what is counted of it.
type spoken struct {
	name, path     string
	kind           string // content-type
	pieces         []string
	usage          float64
	isEstimated    bool
	requestsStream bool
}

// openAIStream returns a stream of n tokens, and its usage if the client has asked for it.
func openAIStream(n int, usage bool) (pieces []string) {
	for i := range n {
		pieces = append(pieces, fmt.Sprintf(
			`data: {"id":"c1","object":"chat.completion.chunk","created":1,"model":"sim","choices":[{"index":0,"delta":{"content":" token %d"}}]}`+"\n\n", i))
	}
	if usage {
		pieces = append(pieces, fmt.Sprintf(`data: {"id":"c1","object":"chat.completion.chunk","created":1,"model":"sim","choices":[],`+
			`"usage":{"prompt_tokens":7,"completion_tokens":%d,"total_tokens":%d,"prompt_tokens_details":{"cached_tokens":3}}}`+"\n\n", n, n+7))
	}
	return append(pieces, "data: [DONE]\n\n")
}

// answersOfEngines are streams and other answers of the APIs that engines have.
func answersOfEngines() []spoken {
	const stream, whole = "text/event-stream; charset=utf-8", "application/json"
	chat := func(tokens, bytes int) []string {
		return []string{fmt.Sprintf(`{"id":"c1","object":"chat.completion","created":1,"model":"sim","choices":[{"index":0,"message":`+
			`{"role":"assistant","content":%q},"finish_reason":"stop"}],"usage":{"prompt_tokens":7,"completion_tokens":%d,"total_tokens":%d}}`,
			strings.Repeat("x", bytes), tokens, tokens+7)}
	}
	return []spoken{
		{"a stream with usage", "/v1/chat/completions", stream, openAIStream(40, true), 40, false, true},
		{"a stream without usage", "/v1/chat/completions", stream, openAIStream(40, false), 0, true, true},
		{"a whole answer", "/v1/chat/completions", whole, chat(50, 100), 50, false, false},
		{"a whole answer larger than Envoy's buffer", "/v1/chat/completions", whole, chat(60, 600<<10), 60, false, false},
		{"one that is too large to be read", "/v1/chat/completions", whole, chat(70, 3<<20), 0, false, false},
		{"no JSON", "/v1/chat/completions", whole, []string{`{"usage": {"completion_tokens": 1`}, 0, false, false},
		{"an answer of /v1/messages", "/v1/messages", whole, []string{`{"id":"m1","type":"message","role":"assistant","model":"sim",` +
			`"content":[{"type":"text","text":"hi"}],"stop_reason":"end_turn","usage":{"input_tokens":7,"output_tokens":80}}`}, 80, false, false},
		{"a stream of /v1/messages", "/v1/messages", stream, []string{
			"event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"m1\",\"type\":\"message\",\"role\":\"assistant\",\"model\":\"sim\"," +
				"\"content\":[],\"usage\":{\"input_tokens\":7,\"output_tokens\":1}}}\n\n",
			"event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"hi\"}}\n\n",
			"event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":90}}\n\n",
			"event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
		}, 90, false, true},
		{"an answer of /v1/responses", "/v1/responses", whole, []string{`{"id":"r1","object":"response","status":"completed","model":"sim",` +
			`"output":[],"usage":{"input_tokens":7,"input_tokens_details":{"cached_tokens":0},"output_tokens":100,` +
			`"output_tokens_details":{"reasoning_tokens":0},"total_tokens":107}}`}, 100, false, false},
		{"a stream of /v1/responses", "/v1/responses", stream, []string{
			"event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"item_id\":\"i\",\"output_index\":0,\"content_index\":0,\"delta\":\"hi\"}\n\n",
			"event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"id\":\"r1\",\"object\":\"response\",\"status\":\"completed\"," +
				"\"model\":\"sim\",\"output\":[],\"usage\":{\"input_tokens\":7,\"output_tokens\":110,\"total_tokens\":117}}}\n\n",
		}, 110, false, true},
	}
}

// TestAnswerTokens: Envoy reads the usage in answers, and changes and delays no byte of them. Each piece of an answer is sent when the client
// has received the one before. The tokens are counted by model, worker and tenant, and with the limit or the budget that they exceed the tenant
// is refused.
func TestAnswerTokens(t *testing.T) {
	t.Parallel()
	now := make(chan spoken, 1)
	received := make(chan struct{})
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost { // a router asks for the models
			http.NotFound(w, r)
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
		var answer spoken
		select {
		case answer = <-now:
		case <-r.Context().Done():
			return
		}
		w.Header().Set("content-type", answer.kind)
		for _, piece := range answer.pieces {
			_, _ = io.WriteString(w, piece)
			_ = http.NewResponseController(w).Flush()
			select {
			case <-received:
			case <-r.Context().Done():
				return
			}
		}
	}))
	t.Cleanup(func() {
		engine.CloseClientConnections()
		engine.Close()
	})
	g := up(t, "--config", configFile(t, fmt.Sprintf(`
gateway:
  auth: {keysFile: %q}
  answerTokens: true
  passPaths: [/v1/messages, /v1/responses]
  limits: {tenants: [{name: blue, answerTokensPerMinute: 10}, {name: green, tokensPerDay: 5}]}
models: [{name: sim, path: "builtin:sim", workers: [{name: w, address: %q, healthPath: none}]}]
`, writeKeys(t, fmt.Sprintf("- {tenant: red, key: %s}\n- {tenant: blue, key: %s}\n- {tenant: green, key: %s}\n",
		redKey, blueKey, nobodyKey)), engine.Listener.Addr())))

	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	ask := func(a *spoken, key string) int {
		body, err := json.Marshal(map[string]any{"model": "sim", "stream": a.requestsStream, "max_tokens": 100, "input": "hello",
			"messages": []message{{"user", "hello"}}})
		if err != nil {
			t.Fatal(err)
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, g.url+a.path, bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("content-type", "application/json")
		req.Header.Set("x-api-key", key)
		resp, err := g.do(req)
		if err != nil {
			t.Fatalf("%s: %v", a.name, err)
		}
		defer func() { _ = resp.Body.Close() }()
		if resp.StatusCode != http.StatusOK {
			return resp.StatusCode
		}
		for i, piece := range a.pieces {
			got := make([]byte, len(piece))
			if _, err := io.ReadFull(resp.Body, got); err != nil || string(got) != piece {
				t.Fatalf("%s: piece %d is %.200q, %v; the engine has sent %.200q", a.name, i, got, err, piece)
			}
			select {
			case received <- struct{}{}:
			case <-ctx.Done():
				t.Fatalf("%s: piece %d arrived, and the engine does not wait", a.name, i)
			}
		}
		if rest, err := io.ReadAll(resp.Body); err != nil || len(rest) > 0 {
			t.Errorf("%s: %.200q is added, %v", a.name, rest, err)
		}
		return resp.StatusCode
	}
	tokens := func(labels ...string) float64 { return g.metric("stator_request_answer_tokens_total", labels...) }

	sum := 0.0
	for i, a := range answersOfEngines() {
		estimated := tokens(`source="estimate"`)
		now <- a
		if status := ask(&a, redKey); status != http.StatusOK {
			t.Fatalf("%s: %d", a.name, status)
		}
		g.assertServed(i + 1)
		sum += a.usage
		if got := tokens(`source="usage"`, `worker="w"`, `model="sim"`); got != sum {
			t.Errorf("%s: %g tokens, want %g", a.name, got, sum)
			sum = got
		}
		if is := tokens(`source="estimate"`) - estimated; a.isEstimated && (is < 30 || is > 50) || !a.isEstimated && is != 0 {
			t.Errorf("%s: %g tokens are estimated", a.name, is)
		}
	}
	if got := g.metric("stator_tenant_answer_tokens_total", `source="usage"`, `tenant="red"`); got != sum {
		t.Errorf("%g tokens of the tenant, want %g", got, sum)
	}

	whole := answersOfEngines()[2]
	for _, tenant := range []struct{ key, refusal, code string }{
		{blueKey, "tokens", "rate_limit_exceeded"}, {nobodyKey, "insufficient_quota", "insufficient_quota"},
	} {
		now <- whole
		if status := ask(&whole, tenant.key); status != http.StatusOK {
			t.Errorf("the first request with %s: %d", tenant.key, status)
		}
		eventually(t, "the answer is counted, and its tenant is refused", func() error {
			ctx, cancel := context.WithTimeout(ctx, time.Second) // the engine does not answer one that is admitted
			defer cancel()
			r, err := g.send(ctx, http.MethodPost, whole.path, []byte(`{"model": "sim", "messages": []}`), "x-api-key", tenant.key)
			if err == nil && (r.status != http.StatusTooManyRequests || r.error.Type != tenant.refusal || r.error.Code != tenant.code ||
				r.header.Get("retry-after") == "") {
				err = errors.New(r.body)
			}
			return err
		})
	}
	if got := g.metric("stator_tenant_budget_used_tokens", `tenant="green"`, `period="day"`); got < 5 {
		t.Errorf("green has used %g tokens of its budget", got)
	}
}
