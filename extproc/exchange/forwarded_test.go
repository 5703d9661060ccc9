package exchange

import (
	"strings"
	"testing"
)

// TestTransfersOfClientsAreRemoved: no worker receives members of transfers that a client sent, on no path, and no body in which
// they could hide. Members of a cut body cannot be removed.
func TestTransfersOfClientsAreRemoved(t *testing.T) {
	const dangerous = `{"model":"sim","prompt":"hello","kv_transfer_params":{"do_remote_prefill":true}}`
	hidden := `{"a":` + strings.Repeat("[", 5000) + strings.Repeat("]", 5000) + `,"bootstrap_host":"10.0.0.9"}`
	for _, c := range []struct {
		name, path, body, want string
		status                 int
		cut                    bool
	}{
		{"completions", "/v1/completions", dangerous, `{"model":"sim","prompt":"hello"}`, 0, false},
		{"a path that passes", "/v1/rerank", dangerous, `{"model":"sim","prompt":"hello"}`, 0, false},
		{"nothing to remove", "/v1/rerank", `{"model":"sim","input":"hello"}`, "", 0, false},
		{"a form", "/v1/audio/transcriptions", "--boundary\r\nkv_transfer_params", "", 0, false},
		{"nothing", "/v1/rerank", "", "", 0, false},
		{"a text", "/v1/audio/transcriptions", "kv_transfer_params", "", 400, false},
		{"a list", "/v1/rerank", `[{"kv_transfer_params":{}}]`, "", 400, false},
		{"a byte order mark", "/v1/rerank", "\xef\xbb\xbf" + dangerous, "", 400, false},
		{"a byte order mark on a parsed path", "/v1/completions", "\xef\xbb\xbf" + dangerous, "", 400, false},
		{"no UTF-8 on a parsed path", "/v1/completions", `{"model":"sim","prompt":"hello","user":"` + "\xff" + `"}`, "", 400, false},
		{"vLLM's own arguments", "/v1/completions", `{"model":"sim","prompt":"hello","vllm_xargs":{"kv_transfer_params":[]}}`,
			`{"model":"sim","prompt":"hello","vllm_xargs":{}}`, 0, false},
		{"nested too deeply", "/v1/completions", hidden, "", 400, false},
		{"nested too deeply on a path that passes", "/v1/rerank", hidden, "", 400, false},
		{"the first part of a body", "/v1/rerank", dangerous[:40], "", 0, true},
	} {
		svc, _ := newService(t)
		x := svc.Begin(Origin{Source: "envoy"})
		x.OnHeaders(Head{Method: "POST", Path: c.path}, start)
		r := x.OnBody([]byte(c.body), !c.cut, start)
		status := 0
		if r.Answer != nil {
			status = r.Answer.Status
		}
		if string(r.Body) != c.want || status != c.status {
			t.Errorf("%s: body %q, status %d", c.name, r.Body, status)
		}
	}
}
