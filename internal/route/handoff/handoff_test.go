package handoff

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/stator-project/stator/internal/fleet"
)

const id = MinID + 1<<55 + 1 // above 2^53, where floating-point numbers have gaps

// TestConcurrentLegs: both workers get the id of the transfer, and the decode worker the address of the other one.
func TestConcurrentLegs(t *testing.T) {
	const body = `{"model":"m", "max_tokens":9,"stream":true,"stream_options":{},"bootstrap_room":7,"seed":9007199254740993}`
	for _, c := range []struct {
		transfer        Transfer
		prefill, decode string
	}{
		{
			Transfer{Kind: fleet.TransferP2P, Endpoint: Chat, At: "10.0.0.9:25710"},
			`{"model":"m","seed":9007199254740993,"stream":false,"max_tokens":1,"max_completion_tokens":1,` +
				`"kv_transfer_params":{"remote_decoder":{"kv_request_id":"80040000000001"}}}`,
			`{"model":"m","max_tokens":9,"stream":true,"stream_options":{},"seed":9007199254740993,"kv_transfer_params":` +
				`{"remote_prefiller":{"kv_request_id":"80040000000001","remote_host":"10.0.0.9","remote_port":25710}}}`,
		},
		{
			Transfer{Kind: fleet.TransferBootstrap, Endpoint: Completions, At: "[fd00::9]:8998", PrefillRank: -1, DecodeRank: -1},
			`{"model":"m","max_tokens":9,"seed":9007199254740993,"stream":false,` +
				`"bootstrap_host":"fd00::9","bootstrap_port":8998,"bootstrap_room":36033195065475073}`,
			`{"model":"m","max_tokens":9,"stream":true,"stream_options":{},"seed":9007199254740993,` +
				`"bootstrap_host":"fd00::9","bootstrap_port":8998,"bootstrap_room":36033195065475073}`,
		},
		{
			Transfer{Kind: fleet.TransferBootstrap, At: "engine-0:8998", PrefillRank: 1, DecodeRank: 0},
			`{"model":"m","max_tokens":9,"seed":9007199254740993,"stream":false,` +
				`"bootstrap_host":"engine-0","bootstrap_port":8998,"bootstrap_room":36033195065475073,"routed_dp_rank":1}`,
			`{"model":"m","max_tokens":9,"stream":true,"stream_options":{},"seed":9007199254740993,` +
				`"bootstrap_host":"engine-0","bootstrap_port":8998,"bootstrap_room":36033195065475073,"routed_dp_rank":0,` +
				`"disagg_prefill_dp_rank":1}`,
		},
	} {
		c.transfer.ID = id
		prefill, err := c.transfer.Prefill(nil, []byte(body))
		if err != nil || string(prefill) != c.prefill {
			t.Errorf("%s: %s, %v\nwant %s", c.transfer.Kind, prefill, err, c.prefill)
		}
		decode, err := c.transfer.Decode(nil, []byte(body), nil)
		if err != nil || string(decode) != c.decode {
			t.Errorf("%s: %s, %v\nwant %s", c.transfer.Kind, decode, err, c.decode)
		}
	}
}

// TestPull: the members of transfers that a client has set are replaced.
func TestPull(t *testing.T) {
	got, err := Pull(nil, []byte(`{"kv_transfer_params":{"do_remote_prefill":true},"n":1}`), "10.0.0.9:25710", id)
	want := `{"n":1,"kv_transfer_params":{"remote_kv_source":{"kv_request_id":"80040000000001","remote_host":"10.0.0.9","remote_port":25710}}}`
	if err != nil || string(got) != want {
		t.Errorf("%s, %v", got, err)
	}
	if got, err := Pull(nil, []byte(`{}`), "nowhere", id); err == nil || len(got) > 0 {
		t.Errorf("%s", got)
	}
}

// The answer of a context server, in the form of TensorRT-LLM's openai_protocol.py.
const contextAnswer = `{"id":"cmpl-1","choices":[{"index":0,"text":"a","finish_reason":"length","disaggregated_params":` +
	`{"request_type":"context_only","first_gen_tokens":[17],"ctx_request_id":9007199254740993,"encoded_opaque_state":"AA==",` +
	`"draft_tokens":null}}],"usage":{"prompt_tokens":3,"prompt_tokens_details":{"cached_tokens":2}},"prompt_token_ids":[1,2,3]}`

// TestContext: the parameters of the context server reach the generation server byte for byte, with the prompt's token ids.
func TestContext(t *testing.T) {
	body := `{"prompt":"abc","stream":true,"disaggregated_params":{"a":1}}`
	transfer := Transfer{Kind: fleet.TransferContext, Endpoint: Completions, ID: id}
	prefill, err := transfer.Prefill(nil, []byte(body))
	want := `{"prompt":"abc","stream":false,"disaggregated_params":{"request_type":"context_only","disagg_request_id":36033195065475073}}`
	if err != nil || string(prefill) != want {
		t.Errorf("%s, %v", prefill, err)
	}

	const params = `"disaggregated_params":{"first_gen_tokens":[17],"ctx_request_id":9007199254740993,"encoded_opaque_state":"AA==",` +
		`"draft_tokens":null,"request_type":"generation_only","disagg_request_id":36033195065475073}`
	for _, c := range []struct {
		endpoint Endpoint
		want     string
	}{
		{Completions, `{"stream":true,` + params + `,"prompt":[1,2,3]}`},
		{Chat, `{"prompt":"abc","stream":true,` + params + `,"prompt_token_ids":[1,2,3]}`},
	} {
		transfer.Endpoint = c.endpoint
		decode, err := transfer.Decode(nil, []byte(body), []byte(contextAnswer))
		if err != nil || string(decode) != c.want {
			t.Errorf("%s, %v\nwant %s", decode, err, c.want)
		}
	}
}

// TestContextRefuses: an answer that leaves nothing to decode, or without what a generation server needs, is refused.
func TestContextRefuses(t *testing.T) {
	transfer := Transfer{Kind: fleet.TransferContext, Endpoint: Chat, ID: id}
	for _, c := range []struct{ old, now, want string }{
		{`"length"`, `"stop"`, "ended the answer"},
		{`[17]`, `[null]`, "first_gen_tokens"},
		{`[17]`, `[]`, "first_gen_tokens"},
		{`"ctx_request_id":9007199254740993`, `"ctx_request_id":1.5`, "ctx_request_id"},
		{`"disaggregated_params"`, `"other"`, "no parameters"},
		{`{"index":0`, `{},{"index":0`, "no parameters"},
		{`"usage"`, `usage`, "no JSON"},
	} {
		got, err := transfer.Decode(nil, []byte(`{}`), []byte(strings.Replace(contextAnswer, c.old, c.now, 1)))
		if err == nil || len(got) > 0 || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %s, %v", c.now, got, err)
		}
	}
}

// TestKinds: a kind without transfers has no requests, and each other kind needs either an answer or an address.
func TestKinds(t *testing.T) {
	for kind := range fleet.TransferContext + 1 {
		transfer := Transfer{Kind: kind, ID: id}
		if _, err := transfer.Decode(nil, []byte(`{}`), []byte(`{}`)); err == nil {
			t.Errorf("%s decodes without an address and an answer", kind)
		}
		if IsConcurrent(kind) != kind.HasAddress() || Supports(kind, Chat) != (kind != fleet.NoTransfer) {
			t.Errorf("%s", kind)
		}
	}
	transfer := Transfer{Kind: fleet.TransferNixl}
	if _, err := transfer.Decode(nil, []byte(`{}`), make([]byte, MaxAnswer+1)); err == nil || errors.Is(err, ErrNoTransfer) {
		t.Error(err)
	}
}

// TestCachedTokens: each endpoint has the number in another place.
func TestCachedTokens(t *testing.T) {
	for _, c := range []struct {
		usage string
		want  int
		ok    bool
	}{
		{`{"prompt_tokens_details":{"cached_tokens":32}}`, 32, true},
		{`{"prompt_tokens_details":null,"input_tokens_details":{"cached_tokens":0}}`, 0, true},
		{`{"input_tokens":27,"cache_read_input_tokens":288}`, 288, true},
		{`{"prompt_tokens_details":{"cached_tokens":-1}}`, 0, false},
		{`{"prompt_tokens_details":{"cached_tokens":"1"}}`, 0, false},
		{`null`, 0, false},
	} {
		n, ok := CachedTokens([]byte(`{"usage":` + c.usage + `}`))
		if n != c.want || ok != c.ok {
			t.Errorf("%s: %d, %v", c.usage, n, ok)
		}
	}
}

// FuzzContext: an answer is refused, or the decode request has parameters that a decoder finds complete.
func FuzzContext(f *testing.F) {
	f.Add([]byte(contextAnswer))
	f.Fuzz(func(t *testing.T, answer []byte) {
		CachedTokens(answer)
		transfer := Transfer{Kind: fleet.TransferContext, ID: id}
		spliced, err := transfer.Decode(nil, []byte(`{"prompt":"a"}`), answer)
		var is struct {
			Params map[string]any `json:"disaggregated_params"`
		}
		if err != nil || json.Unmarshal(spliced, &is) != nil {
			return // refused, or with NaN in a member that is only copied
		}
		if is.Params["ctx_request_id"] == nil || is.Params["first_gen_tokens"] == nil || is.Params["request_type"] != "generation_only" {
			t.Fatalf("%q became %q", answer, spliced)
		}
	})
}
