package handoff

import (
	"encoding/json"
	"maps"
	"reflect"
	"strings"
	"testing"
)

// TestStrip: members of transfers go, wherever they are and however they are written. Everything else keeps its bytes.
func TestStrip(t *testing.T) {
	for _, c := range []struct{ name, body, want, fault string }{
		{"none", `{"model":"m","max_tokens":9007199254740993}`, "", ""},
		{"alone", `{"kv_transfer_params":{"do_remote_prefill":true}}`, `{}`, ""},
		{"first", `{"bootstrap_host":"10.0.0.1","model":"m"}`, `{"model":"m"}`, ""},
		{"last, with white space", "{ \"model\" : \"m\" ,\n \"bootstrap_room\" : 1 }\n", `{"model" : "m"}`, ""},
		{"twice", `{"ec_transfer_params":1,"a":[1, 2],"ec_transfer_params":{"b":2},"c":1e400}`, `{"a":[1, 2],"c":1e400}`, ""},
		{"with escapes", `{"kv\u005ftransfer_param\u0073":{},"a":1}`, `{"a":1}`, ""},
		{"below the top level", `{"metadata":{"kv_transfer_params":{}}}`, "", ""},
		{"as a value", `{"user":"kv_transfer_params"}`, "", ""},
		{"in vllm_xargs", `{"n":2,"vllm_xargs":{"kv_transfer_params":[],"a":1}}`, `{"n":2,"vllm_xargs":{"a":1}}`, ""},
		{"in vllm_xargs with escapes", `{"vllm\u005fxargs" : { "ec_transfer_param\u0073":[] }, "n":2}`, `{"vllm\u005fxargs" : {},"n":2}`, ""},
		{"in vllm_xargs twice", `{"vllm_xargs":{"kv_transfer_params":1},"vllm_xargs":{"a":0,"kv_transfer_params":2}}`,
			`{"vllm_xargs":{},"vllm_xargs":{"a":0}}`, ""},
		{"in extra_args", `{"sampling_params":{"n":2,"extra_args":{"kv_transfer_params":{"do_remote_prefill":true},"b":1e400}}}`,
			`{"sampling_params":{"n":2,"extra_args":{"b":1e400}}}`, ""},
		{"in sampling_params", `{"sampling_params":{"bootstrap_room":1}}`, `{"sampling_params":{}}`, ""},
		{"in a list", `{"vllm_xargs":["kv_transfer_params"]}`, "", ""},
		{"of SGLang's native requests", `{"bootstrap_pair_key":"k","decode_tp_size":2,"a":1}`, `{"a":1}`, ""},
		{"no object", `["kv_transfer_params"]`, "", "not a JSON object"},
		{"nothing", ``, "", "not a JSON object"},
		{"a byte order mark", "\xef\xbb\xbf" + `{"kv_transfer_params":{}}`, "", "byte order mark"},
		{"UTF-16", "\xff\xfe{\x00}\x00", "", "UTF-8"},
		{"UTF-16 without a mark", "{\x00}\x00", "", "expected a string"},
		{"not UTF-8", "{\"a\":\"\xff\"}", "", "UTF-8"},
		{"cut off", `{"kv_transfer_params":{},"a":`, "", "unexpected end"},
		{"too deep", `{"kv_transfer_params":{},"a":` + strings.Repeat("[", 2000) + strings.Repeat("]", 2000) + "}", "", "too deeply"},
		{"more behind it", `{"kv_transfer_params":{}} {}`, "", "after the body's object"},
	} {
		clean, err := Strip([]byte(c.body), nil)
		if string(clean) != c.want || (err == nil) != (c.fault == "") || err != nil && !strings.Contains(err.Message, c.fault) {
			t.Errorf("%s: %q, %v", c.name, clean, err)
		}
	}
}

// FuzzStrip compares with a decoder: an object keeps all other members and loses those of transfers, or is refused.
func FuzzStrip(f *testing.F) {
	f.Add([]byte(`{"kv_transfer_params":{"do_remote_prefill":true},"model":"m","n":1}`))
	f.Add([]byte(`{"a":"\u0000","bootstrap_host":null,"a":[{}]}`))
	f.Add([]byte(`{"sampling_params":{"extra_args":{"kv_transfer_params":{}}},"vllm_xargs":{"a":{"kv_transfer_params":1}}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		clean, err := Strip(body, nil)
		var was, is map[string]any
		if err != nil || json.Unmarshal(body, &was) != nil {
			return // a body that is refused, or one with NaN, which engines in Python accept
		}
		if clean == nil {
			clean = body
		}
		if err := json.Unmarshal(clean, &is); err != nil {
			t.Fatalf("%q became %q: %v", body, clean, err)
		}
		remove(was, holderLevels)
		if !maps.EqualFunc(was, is, func(a, b any) bool { return reflect.DeepEqual(a, b) }) {
			t.Fatalf("%q became %q", body, clean)
		}
	})
}

// remove removes the members of transfers from a decoded object.
func remove(object map[string]any, levels int) {
	maps.DeleteFunc(object, func(name string, _ any) bool { return transfer[name] })
	for name, value := range object {
		if below, ok := value.(map[string]any); ok && holders[name] && levels > 0 {
			remove(below, levels-1)
		}
	}
}

// BenchmarkStrip: what does the search cost in a body without such members?
func BenchmarkStrip(b *testing.B) {
	body := []byte(`{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("lorem ipsum dolor ", 2000) + `"}],"max_tokens":100}`)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if clean, err := Strip(body, nil); clean != nil || err != nil {
			b.Fatal(err)
		}
	}
}
