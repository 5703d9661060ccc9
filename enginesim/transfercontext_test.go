package enginesim_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stator-project/stator/enginesim"
	"github.com/stator-project/stator/internal/fleet"
)

// contextAnswer has the members that a router reads of the answer of a context request.
type contextAnswer struct {
	Prompt  []int `json:"prompt_token_ids"`
	Choices []struct {
		Params map[string]json.RawMessage `json:"disaggregated_params"`
		Reason string                     `json:"finish_reason"`
	}
	Usage *usage
}

// context has an engine compute a prompt.
func (r *running) context(path, body string) contextAnswer {
	r.t.Helper()
	status, text := r.post(path, body)
	var got contextAnswer
	if err := json.Unmarshal([]byte(text), &got); status != http.StatusOK || err != nil || len(got.Choices) == 0 {
		r.t.Fatalf("%d %s, %v", status, text, err)
	}
	return got
}

// generate returns the members of the second request.
func (a *contextAnswer) generate(change ...string) string {
	params := a.Choices[0].Params
	params["request_type"] = json.RawMessage(`"generation_only"`)
	for i := 0; i < len(change); i += 2 {
		params[change[i]] = json.RawMessage(change[i+1])
	}
	text, _ := json.Marshal(params)
	return `"disaggregated_params":` + string(text)
}

const (
	contextID   = 1<<53 + 1 // which is no float64
	contextOnly = `"disaggregated_params":{"request_type":"context_only","disagg_request_id":%d}`
)

// TestContext: the first engine answers with one token and with the place of the blocks, and the second one decodes from there, with
// the tokens in place of the prompt.
func TestContext(t *testing.T) {
	p, d := start(t, transferring(fleet.TransferContext, patient)), start(t, transferring(fleet.TransferContext, patient))
	plain := start(t, nil)
	tokens := func(a contextAnswer) string {
		text, _ := json.Marshal(a.Prompt)
		return string(text)
	}

	alone := plain.ask(completions, split)
	first := p.context(completions, with(contextOnly, int64(contextID)))
	if id := string(first.Choices[0].Params["ctx_request_id"]); id != fmt.Sprint(contextID) || first.Choices[0].Reason != "length" ||
		len(first.Prompt) != 31 || first.Usage.Answer != 1 || p.metric(inUse) != "0.125" {
		t.Fatalf("%+v, request %s", first, id)
	}
	body := strings.Replace(with("%s", first.generate()), `"`+splitPrompt+`"`, tokens(first), 1)
	if got := d.ask(completions, body); got.Choices[0].Text != alone.Choices[0].Text || got.Usage.Answer != 5 || got.Usage.Prompt != 31 {
		t.Errorf("%+v, want %q", got, alone.Choices[0].Text)
	}
	free(p, d)

	// A chat, without an id of the router, as a stream.
	members := func(text string) string { return chat + "," + text + "}" }
	want := plain.ask("/v1/chat/completions", chat+"}").Choices[0].Message.Content
	first = p.context("/v1/chat/completions", members(`"disaggregated_params":{"request_type":"CONTEXT_ONLY"}`))
	body = strings.Replace(members(first.generate()+`,"stream":true,"prompt_token_ids":`+tokens(first)), "Hello", "Ignored", 1)
	_, stream := d.post("/v1/chat/completions", body)
	var text strings.Builder
	for line := range strings.Lines(stream) {
		var event reply
		if json.Unmarshal([]byte(strings.TrimPrefix(line, "data: ")), &event) == nil && len(event.Choices) > 0 {
			text.WriteString(event.Choices[0].Delta.Content)
		}
	}
	if text.String() != want {
		t.Errorf("%q, want %q", text.String(), want)
	}
	if d.metric(computed) != "0" || d.metric(fetched) != "56" {
		t.Errorf("computed %s tokens, fetched %s", d.metric(computed), d.metric(fetched))
	}
	free(p, d)

	// The first token of the answer comes from the parameters, and the usage has the cached tokens of the first request.
	first = p.context(completions, with(contextOnly, 7))
	got := d.ask(completions, with("%s", first.generate("first_gen_tokens", "[255]", "ctx_usage", `{"prompt_tokens_details":{"cached_tokens":28}}`)))
	if !strings.HasPrefix(got.Choices[0].Text, " pp ") || got.Usage.Details.Cached != 28 {
		t.Errorf("%+v", got)
	}

	// Without parameters, both are ordinary engines.
	for _, members := range []string{`"disaggregated_params":null`, `"disaggregated_params":{"request_type":"context_and_generation"}`} {
		if got := p.ask(completions, with("%s", members)); got.Usage.Answer != 5 {
			t.Errorf("%+v", got)
		}
	}
	free(p, d)
}

// TestContextStops: an answer that ends with its first token needs no second request, and keeps no blocks.
func TestContextStops(t *testing.T) {
	p := start(t, transferring(fleet.TransferContext, patient, func(c *enginesim.Config) { c.AnswerTokens = 1 }))
	first := p.context("/v1/chat/completions", strings.Replace(chat, `,"max_tokens":5`, "", 1)+","+fmt.Sprintf(contextOnly, 7)+"}")
	if id := string(first.Choices[0].Params["ctx_request_id"]); first.Choices[0].Reason != "stop" || id != "null" {
		t.Errorf("%s: %+v", id, first)
	}
	free(p)
}

// TestContextFails: the answers are the same as trtllm-serve's, whose errors all have the status 400, and no block stays in
// use.
func TestContextFails(t *testing.T) {
	p, d := start(t, transferring(fleet.TransferContext)), start(t, transferring(fleet.TransferContext))
	elsewhere := func(engine, address string) string {
		text, _ := json.Marshal(map[string]string{"Engine": engine, "Address": address})
		return `"` + base64.StdEncoding.EncodeToString(text) + `"`
	}
	for name, c := range map[string]struct {
		change []string
		want   string
		waits  bool // for TransferTimeout
	}{
		"no id":              {[]string{"disagg_request_id", "null", "ctx_request_id", "null"}, "incompatible function arguments", false},
		"no first token":     {[]string{"first_gen_tokens", "null"}, "first_gen_tokens", false},
		"a wrong token":      {[]string{"first_gen_tokens", "[256]"}, "out of range", false},
		"a negative token":   {[]string{"first_gen_tokens", "[-1]"}, "disaggregated_params", false},
		"no base64":          {[]string{"encoded_opaque_state", `"A"`}, "Incorrect padding", false},
		"an unknown member":  {[]string{"extra", "1"}, "unknown field", false},
		"a float":            {[]string{"disagg_request_id", "9.007199254740993e15"}, "disaggregated_params", false},
		"the other style":    {[]string{"schedule_style", "1"}, "context_first", false},
		"no state":           {[]string{"encoded_opaque_state", "null"}, "Generation failed", true},
		"another state":      {[]string{"encoded_opaque_state", `"AAAA"`}, "Generation failed", true},
		"another id":         {[]string{"disagg_request_id", "8"}, "Generation failed", true},
		"another engine":     {[]string{"encoded_opaque_state", elsewhere("other", fmt.Sprint("127.0.0.1:", p.TransferPort()))}, "Generation failed", true},
		"an unreachable one": {[]string{"encoded_opaque_state", elsewhere("other", "127.0.0.1:1")}, "Generation failed", true},
	} {
		first := p.context(completions, with(contextOnly, 7))
		good := with("%s", first.generate())
		begin := time.Now()
		status, text := d.post(completions, with("%s", first.generate(c.change...)))
		if status != http.StatusBadRequest || !strings.Contains(text, c.want) || !strings.HasPrefix(text, `{"object":"error"`) ||
			c.waits && time.Since(begin) < 200*time.Millisecond {
			t.Errorf("%s: %d %s after %v", name, status, text, time.Since(begin))
		}

		// The blocks are still there.
		if got := d.ask(completions, good); got.Usage.Answer != 5 {
			t.Errorf("%s: %+v", name, got)
		}
		free(p, d)
	}

	for _, params := range []string{`7`, `"x"`, `[]`, `{}`, `{"request_type":null}`, `{"request_type":"x"}`, `{"request_type":"context_only","disagg_request_id":"x"}`, `{`} {
		if status, text := p.post(completions, with(`"disaggregated_params":%s`, params)); status != http.StatusBadRequest {
			t.Errorf("%s: %d %s", params, status, text)
		}
	}
	if status, _ := p.post("/v1/chat/completions", chat+`,"prompt_token_ids":["x"]}`); status != http.StatusBadRequest {
		t.Errorf("tokens that are no numbers: %d", status)
	}
	free(p, d)
}

// TestContextLeases: blocks are fetched once, by the same prompt, within the lease's time, and under an id that is not in use.
func TestContextLeases(t *testing.T) {
	p, d := start(t, transferring(fleet.TransferContext)), start(t, transferring(fleet.TransferContext))
	refused := func(r *running, body string) {
		t.Helper()
		if status, text := r.post(completions, body); status != http.StatusBadRequest || !strings.Contains(text, "Error in kv cache transfer") {
			t.Errorf("%d %s", status, text)
		}
		free(d)
	}

	first := p.context(completions, with(contextOnly, 7))
	refused(p, with(contextOnly, 7))
	body := with("%s", first.generate())
	refused(d, strings.Replace(body, "two", "2..", 1))
	free(p)
	first = p.context(completions, with(contextOnly, 7))
	body = with("%s", first.generate())
	d.ask(completions, body)
	refused(d, body)
	free(p)

	short := start(t, transferring(fleet.TransferContext, func(c *enginesim.Config) { c.Lease = time.Millisecond }))
	first = short.context(completions, with(contextOnly, 7))
	free(short)
	refused(d, with("%s", first.generate()))
}

// TestContextClientsLeave: both engines free all blocks.
func TestContextClientsLeave(t *testing.T) {
	stuck := start(t, transferring(fleet.TransferContext, func(c *enginesim.Config) { c.Engine.Timing = hours{} }))
	leaves := stuck.later(completions, with(contextOnly, 7))
	stuck.until("computing", func() bool { return stuck.metric(inUse) != "0" })
	leaves.leave()
	free(stuck)

	slow := func(c *enginesim.Config) { patient(c); c.TransferBase = time.Hour }
	p, d := start(t, transferring(fleet.TransferContext, slow)), start(t, transferring(fleet.TransferContext, slow))
	first := p.context(completions, with(contextOnly, 7))
	leaves = d.later(completions, with("%s", first.generate()))
	leaves.waits()
	leaves.leave()
	free(p, d)
}

// FuzzContext: any parameters are answered, and keep no blocks.
func FuzzContext(f *testing.F) {
	for _, seed := range []string{`null`, `{"request_type":"context_only"}`, `{"request_type":"generation_only","ctx_request_id":1,"first_gen_tokens":[1]}`,
		`{"request_type":"context_only","disagg_request_id":-1},"stream":true,"n":2`, `{"request_type":7}`} {
		f.Add(seed)
	}
	fuzzMembers(f, fleet.TransferContext, func(text string) string { return `"disaggregated_params":` + text })
}
