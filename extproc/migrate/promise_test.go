package migrate

import (
	"strings"
	"testing"

	"github.com/stator-project/stator/internal/prompt/openai"
)

// TestPromises: which requests are promised, and why others are not.
func TestPromises(t *testing.T) {
	const chat = `{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]`
	for _, c := range []struct {
		body string
		want Promise
	}{
		{`,"temperature":0}`, Exact},
		{`,"temperature":0.0,"n":1,"seed":3,"top_p":0.5,"stop":[],"tools":null,"logprobs":false,"presence_penalty":0}`, Exact},
		{`,"temperature":0,"stream_options":{"include_usage":true},"max_completion_tokens":9,"user":"u","nvext":{}}`, Exact},
		{`,"temperature":0,"repetition_penalty":1.0,"min_tokens":0,"tool_choice":"none","tools":[ ],"return_token_ids":true}`, Exact},
		{`,"temperature":0,"chat_template":"{{ messages }}","chat_template_kwargs":{"a":1}}`, Exact},
		{`}`, NotGreedy},
		{`,"temperature":null}`, NotGreedy},
		{`,"temperature":0,"temperature":1}`, NotGreedy},
		{`,"temperature":1e-3}`, NotGreedy},
		{`,"temperature":0,"n":2}`, Several},
		{`,"temperature":0,"presence_penalty":0.1}`, Penalties},
		{`,"temperature":0,"frequency_penalty":-1}`, Penalties},
		{`,"temperature":0,"repetition_penalty":1.1}`, Penalties},
		{`,"temperature":0,"min_tokens":4}`, Minimum},
		{`,"temperature":0,"response_format":{"type":"json_object"}}`, Structured},
		{`,"temperature":0,"guided_regex":"a"}`, Structured},
		{`,"temperature":0,"structured_outputs":{"json":{}}}`, Structured},
		{`,"temperature":0,"tools":[{"type":"function","function":{"name":"f"}}]}`, Tools},
		{`,"temperature":0,"tool_choice":"auto"}`, Tools},
		{`,"temperature":0,"logprobs":true}`, Logprobs},
		{`,"temperature":0,"top_logprobs":2}`, Logprobs},
		{`,"temperature":0,"prompt_logprobs":0}`, Logprobs},
		{`,"temperature":0,"stop":"a"}`, Stops},
		{`,"temperature":0,"stop":["a"]}`, Stops},
		{`,"temperature":0,"echo":true}`, OtherParts},
		{`,"temperature":0,"a_new_member":1}`, OtherParts},
		{`,"temperature":0,"bad_words":["a"]}`, OtherParts},
		{`,"temperature":0,"max_tokens":-1}`, OtherParts},
		{`,"temperature":0,"stream_options":{"continuous_usage_stats":true}}`, OtherParts},
		{`,"temperature":0,"logit_bias":{"1":` + strings.Repeat("1", maxMembers) + `}}`, OtherParts},
		{`,"temperature":0`, OtherParts},
		{`,"temperature":0,"messages":[{"role":"user","content":[{"type":"text","text":"a"}]}]}`, Exact},
		{`,"temperature":0,"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:,"}}]}]}`, Media},
	} {
		r, got := Read(openai.Chat, []byte(chat+c.body), false)
		if got != c.want || (r != nil) != (c.want == Exact) {
			t.Errorf("%s: %s, want %s", c.body, got, c.want)
		}
		want := c.want
		if want == NotGreedy {
			want = Sampled
		}
		if _, got := Read(openai.Chat, []byte(chat+c.body), true); got != want {
			t.Errorf("%s: %s with sampled, want %s", c.body, got, want)
		}
	}

	for body, want := range map[string]Promise{
		`"prompt":"a"`:                        Exact,
		`"prompt":["a"]`:                      Exact,
		`"prompt":[1,2]`:                      Exact,
		`"prompt":["a","b"]`:                  Media,
		`"prompt_embeds":"abc"`:               Media,
		`"prompt":"a","echo":1`:               OtherParts,
		`"prompt":"a","logprobs":1,"top_p":0`: Logprobs,
	} {
		if _, got := Read(openai.Completions, []byte(`{"model":"m","stream":true,"temperature":0,`+body+`}`), false); got != want {
			t.Errorf("%s: %s, want %s", body, got, want)
		}
	}
}

// TestContinuedMembers: a continuation has the members that choose tokens, as they were sent, and the rest of max_tokens.
func TestContinuedMembers(t *testing.T) {
	for _, c := range []struct {
		endpoint   openai.Endpoint
		body, want string
	}{
		{openai.Chat, `{"model":"m","messages":[{"role":"user","content":"a"}],"stream":true,"temperature":0,"top_p":1.50,"seed":12345678901234567,` +
			`"metadata":{"a":"b"},"stream_options":{"include_usage":true},"max_tokens":10}`,
			`{"model":"m","temperature":0,"top_p":1.50,"seed":12345678901234567,"prompt":[7,8,100],"max_tokens":9,` +
				`"stream_options":{"include_usage":true},"stream":true,"return_token_ids":true}`},
		{openai.Chat, `{"model":"m","messages":[{"role":"user","content":"a"}],"stream":true,"temperature":0}`,
			`{"model":"m","temperature":0,"prompt":[7,8,100],"max_tokens":null,"stream":true,"return_token_ids":true}`},
		{openai.Completions, `{"model":"m","prompt":"a","stream":true,"temperature":0}`,
			`{"model":"m","temperature":0,"prompt":[7,8,100],"max_tokens":15,"stream":true,"return_token_ids":true}`},
		{openai.Completions, `{"model":"m","prompt":"a","stream":true,"temperature":0,"max_tokens":null}`,
			`{"model":"m","temperature":0,"prompt":[7,8,100],"max_tokens":null,"stream":true,"return_token_ids":true}`},
	} {
		r, why := Read(c.endpoint, []byte(c.body), false)
		if r == nil {
			t.Fatalf("%s: %s", c.body, why)
		}
		s := NewStream(r, &room{left: 1 << 20})
		if s.Body() != nil {
			t.Error("a stream without a prompt has a continuation")
		}
		for _, event := range []string{
			`{"id":"a","choices":[{"index":0,"delta":{"role":"assistant","content":""}}],"prompt_token_ids":[7,8]}`,
			`{"id":"a","choices":[{"index":0,"delta":{"content":"x"},"token_ids":[100]}]}`,
		} {
			if _, err := s.Pass(nil, []byte("data: "+event+"\n\n"), true); err != nil {
				t.Fatal(err)
			}
		}
		if got := string(s.Body()); got != c.want {
			t.Errorf("%s\nwant %s", got, c.want)
		}
		if asks := string(r.WithIDs([]byte(c.body))); asks != strings.TrimSuffix(c.body, "}")+`,"return_token_ids":true}` {
			t.Errorf("%s", asks)
		}
	}
}
