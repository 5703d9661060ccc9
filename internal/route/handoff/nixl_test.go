package handoff

import (
	"encoding/json"
	"errors"
	"maps"
	"reflect"
	"strings"
	"testing"

	"github.com/stator-project/stator/internal/fleet"
)

// vLLM 0.32's answer to a prefill request, without the token ids, as it was captured.
const answered = `{"id":"cmpl-13c5e6f6","object":"text_completion","created":1795266334,"model":"tiny","choices":[{"index":0,` +
	`"text":"\u0017","logprobs":null,"finish_reason":"length","stop_reason":null}],"usage":{"prompt_tokens":100,"total_tokens":101,` +
	`"completion_tokens":1},"kv_transfer_params":` + transferred + `,"ec_transfer_params":null,"metrics":null}`

const transferred = `{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[1,2,3,4]],` +
	`"remote_engine_id":"391a91ef-9043-471a-87ac-74c553542be7","remote_request_id":"cmpl-13c5e6f6-2a09-41e6-8a4d-97b70bd160f4-0-bb0afc05",` +
	`"remote_host":"127.0.0.1","remote_port":25600,"tp_size":1,"dcp_size":1,"pp_size":1,"remote_num_tokens":100,` +
	`"remote_blocks_expiry_time":null,"transfer_mode":"pull","remote_prefill_cached_tokens":0}`

func nixl(e Endpoint) *Transfer { return &Transfer{Kind: fleet.TransferNixl, Endpoint: e} }

// TestPrefill: a prefill request has one token and no stream, and all else keeps its bytes.
func TestPrefill(t *testing.T) {
	for _, c := range []struct {
		name     string
		endpoint Endpoint
		body     string
		want     string // without computeOnly
	}{
		{
			"completion", Completions, `{"model":"tiny","prompt":[77,238],"max_tokens":8,"temperature":0,"stream":true}`,
			`{"model":"tiny","prompt":[77,238],"temperature":0,"stream":false,"max_tokens":1,}`,
		},
		{
			"chat", Chat, `{"messages":[{"role":"user","content":"a"}], "seed" : 9007199254740993 ,"max_completion_tokens":null,"min_tokens":4,"stream_options":{"include_usage":true}}`,
			`{"messages":[{"role":"user","content":"a"}],"seed" : 9007199254740993,"stream":false,"max_tokens":1,"max_completion_tokens":1,}`,
		},
		{"responses", Responses, `{"input":"a","max_output_tokens":9}`, `{"input":"a","stream":false,"max_output_tokens":1,}`},
		{"messages", Messages, `{"max_tokens":9,"messages":[]}`, `{"messages":[],"stream":false,"max_tokens":1,}`},
		{
			"generate", Generate, `{"token_ids":[1],"sampling_params": {"max_tokens":9,"min_tokens":2,"seed":1},"stream":true}`,
			`{"token_ids":[1],"stream":false,"sampling_params":{"seed":1,"max_tokens":1},}`,
		},
		{
			"generate, twice and escaped", Generate, `{"sampling_params":{"seed":1},"sampling_p\u0061rams" :{"seed":2}}`,
			`{"stream":false,"sampling_params":{"seed":2,"max_tokens":1},}`,
		},
		{"generate without parameters", Generate, `{}`, `{"stream":false,"sampling_params":{"max_tokens":1},}`},
		{"generate with null", Generate, `{"sampling_params":null}`, `{"stream":false,"sampling_params":{"max_tokens":1},}`},
		{"transfers of a client", Completions, `{"kv_transfer_params":{"do_remote_prefill":true}}`, `{"stream":false,"max_tokens":1,}`},
	} {
		got, err := nixl(c.endpoint).Prefill([]byte("kept "), []byte(c.body))
		want := "kept " + strings.TrimSuffix(c.want, "}") + computeOnly + "}"
		if err != nil || string(got) != want {
			t.Errorf("%s: %s, %v\nwant %s", c.name, got, err, want)
		}
	}

	for _, body := range []string{"", "[]", "null", `{"a":`, `{} {}`} {
		for e := Chat; e <= Generate; e++ {
			if got, err := nixl(e).Prefill(nil, []byte(body)); err == nil || len(got) > 0 {
				t.Errorf("%q became %s", body, got)
			}
		}
	}
}

// TestDecode: the parameters are copied byte for byte, and the client's body is otherwise unchanged.
func TestDecode(t *testing.T) {
	body := `{"prompt":[77,238], "max_tokens":8,"stream":true}`
	got, err := nixl(Completions).Decode([]byte("kept "), []byte(body), []byte(answered))
	want := `kept {"prompt":[77,238],"max_tokens":8,"stream":true,"kv_transfer_params":` + transferred + `}`
	if err != nil || string(got) != want {
		t.Errorf("%s, %v\nwant %s", got, err, want)
	}

	large := strings.Replace(answered, `"remote_num_tokens":100`, `"remote_num_tokens":9007199254740993`, 1)
	got, err = nixl(Completions).Decode(nil, []byte(`{}`), []byte(large))
	if err != nil || !strings.Contains(string(got), `"remote_num_tokens":9007199254740993`) {
		t.Errorf("%s, %v", got, err)
	}
}

// TestOlderAnswers: before there was a list of block ids for each KV cache group, vLLM's answers had no id of the request.
func TestOlderAnswers(t *testing.T) {
	const older = `{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[1,2],"remote_engine_id":"e",` +
		`"remote_host":"10.0.0.1","remote_port":5600}`
	got, err := nixl(Chat).Decode(nil, []byte(`{}`), []byte(`{"kv_transfer_params":`+older+`}`))
	if err != nil || string(got) != `{"kv_transfer_params":`+older+`}` {
		t.Errorf("%s, %v", got, err)
	}
	for _, wrong := range []string{`"tp_size":0`, `"remote_request_id":null`} {
		given := strings.Replace(older, "}", ","+wrong+"}", 1)
		if got, err := nixl(Chat).Decode(nil, []byte(`{}`), []byte(`{"kv_transfer_params":`+given+`}`)); err == nil {
			t.Errorf("%s", got)
		}
	}
}

// TestDecodeRefuses: an answer with which a decode worker would fail is refused, with the member that is wrong.
func TestDecodeRefuses(t *testing.T) {
	with := func(name, value string) string {
		return strings.Replace(answered, `"`+name+`":`+valueIn(t, name), `"`+name+`":`+value, 1)
	}
	for _, c := range []struct{ answer, want string }{
		{with("do_remote_prefill", "false"), "do_remote_prefill is not true"},
		{with("remote_block_ids", "null"), "remote_block_ids"},
		{with("remote_block_ids", "[[]]"), "remote_block_ids"},
		{with("remote_block_ids", "[[null]]"), "remote_block_ids"},
		{with("remote_block_ids", `["1"]`), "remote_block_ids"},
		{with("remote_block_ids", `[1,[2]]`), "remote_block_ids"},
		{with("remote_block_ids", `[[1],null]`), "remote_block_ids"},
		{with("remote_block_ids", `[[-1]]`), "remote_block_ids"},
		{with("remote_block_ids", `[[1.5]]`), "remote_block_ids"},
		{with("remote_block_ids", `[[[1]]]`), "remote_block_ids"},
		{with("remote_block_ids", `[[12345678901234567890]]`), "remote_block_ids"},
		{with("remote_block_ids", `[[9223372036854775808]]`), "remote_block_ids"},
		{with("remote_block_ids", `[9999999999999999999]`), "remote_block_ids"},
		{with("remote_engine_id", "\"a\xff\""), "UTF-8"},
		{with("remote_engine_id", "null"), "remote_engine_id"},
		{with("remote_request_id", `""`), "remote_request_id"},
		{with("remote_host", "7"), "remote_host"},
		{with("remote_port", "65536"), "remote_port"},
		{with("remote_port", "null"), "remote_port"},
		{with("remote_port", "NaN"), "remote_port"},
		{with("tp_size", "0"), "tp_size"},
		{with("remote_block_ids", "[null]"), "remote_block_ids"},
		{strings.Replace(answered, `"remote_request_id":`, `"id":`, 1), "has no remote_request_id"},
		{strings.Replace(answered, "remote_block_ids", "REMOTE_BLOCK_IDS", 1), "has no remote_block_ids"},
		{strings.Replace(answered, transferred, "[]", 1), "no object"},
		{answered[:len(answered)-1], "no JSON"},
		{`{"a":"` + strings.Repeat("a", MaxAnswer) + `"}`, "more than"},
	} {
		got, err := nixl(Completions).Decode(nil, []byte(`{}`), []byte(c.answer))
		if err == nil || len(got) > 0 || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.200s: %s, %v", c.want, got, err)
		}
	}

	for _, answer := range []string{`{}`, strings.Replace(answered, transferred, "null", 1)} {
		if _, err := nixl(Completions).Decode(nil, []byte(`{}`), []byte(answer)); !errors.Is(err, ErrNoTransfer) {
			t.Errorf("%s: %v", answer, err)
		}
	}
}

// valueIn returns the text of a member of transferred.
func valueIn(t *testing.T, name string) string {
	t.Helper()
	var members map[string]json.RawMessage
	if err := json.Unmarshal([]byte(transferred), &members); err != nil || members[name] == nil {
		t.Fatalf("no %s: %v", name, err)
	}
	return string(members[name])
}

// FuzzPrefill compares with a decoder: what is not replaced stays.
func FuzzPrefill(f *testing.F) {
	f.Add([]byte(`{"prompt":"a","max_tokens":9,"stream":true,"n":1}`), uint8(Completions))
	f.Add([]byte(`{"sampling_params":{"max_tokens":9,"a":[{}]},"sampling_params":{"b":1}}`), uint8(Generate))
	f.Fuzz(func(t *testing.T, body []byte, e uint8) {
		endpoint := Endpoint(e % 5)
		spliced, err := nixl(endpoint).Prefill(nil, body)
		var was, is map[string]any
		if err != nil || json.Unmarshal(body, &was) != nil {
			return // a body that is refused, or one with NaN, which engines in Python accept
		}
		if err := json.Unmarshal(spliced, &is); err != nil {
			t.Fatalf("%q became %q: %v", body, spliced, err)
		}
		if is["stream"] != false || is["kv_transfer_params"].(map[string]any)["do_remote_decode"] != true {
			t.Fatalf("%q became %q", body, spliced)
		}
		drop := func(name string, _ any) bool {
			return replaced[name] || endpoint == Generate && name == "sampling_params"
		}
		maps.DeleteFunc(was, drop)
		maps.DeleteFunc(is, drop)
		if !maps.EqualFunc(was, is, func(a, b any) bool { return reflect.DeepEqual(a, b) }) {
			t.Fatalf("%q became %q", body, spliced)
		}
	})
}

// FuzzDecode: an answer is refused, or the decode request has parameters that a decoder finds complete.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(answered))
	f.Add([]byte(`{"kv_transfer_params":{"do_remote_prefill":true,"remote_block_ids":[1]}}`))
	f.Fuzz(func(t *testing.T, answer []byte) {
		spliced, err := nixl(Completions).Decode(nil, []byte(`{"prompt":"a"}`), answer)
		var is struct {
			Params map[string]any `json:"kv_transfer_params"`
		}
		if err != nil || json.Unmarshal(spliced, &is) != nil {
			return // refused, or with NaN in a member that is only copied
		}
		for _, r := range required {
			if is.Params[r.name] == nil && !r.newer {
				t.Fatalf("%q became %q", answer, spliced)
			}
		}
	})
}
