package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"
)

var seeds = []string{
	`{"model":"m","messages":[{"role":"user","content":"hi"}]}`,
	`{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"a\u00e9\ud83d\ude00\n"},{"type":"image_url","image_url":{"url":"x"}}]}],"tools":[{"a":1}],"stream":true,"stream_options":{"include_usage":true}}`,
	`{"model":"m","prompt":["a","b"],"max_tokens":5,"seed":-1,"n":2,"temperature":1.5e-3}`,
	`{"model":"m","prompt":[[1,2],[3]]}`, `{"model":"m","input":"x","x":{"y":[null,true,false,-0.0]}}`,
	`{"model":"m","max_tokens":5,"system":[{"type":"text","text":"s"}],"thinking":{"type":"disabled"},"messages":[{"role":"assistant","content":[` +
		`{"type":"thinking","thinking":"t"},{"type":"tool_use","id":"1","name":"f","input":{"a":1}}]},{"role":"user","content":[{"type":"tool_result",` +
		`"tool_use_id":"1","content":[{"type":"text","text":"r"},{"type":"image","source":{"type":"url","url":"u"}}]}]}]}`,
	`{"model":"m","instructions":"s","reasoning":{"effort":"low"},"truncation":"auto","input":[{"role":"user","content":[{"type":"input_text","text":"x"},` +
		`{"type":"input_image","image_url":"u"}]},{"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"r"}]},` +
		`{"type":"message","role":"assistant","status":"incomplete","content":[{"type":"output_text","text":"y","annotations":[]}]},` +
		`{"type":"function_call","call_id":"1","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"1","output":"z"}]}`,
	`{"model":"m","input":[{"type":"custom_tool_call","call_id":"1","name":"f","input":"a\n"},{"type":"custom_tool_call_output","call_id":"1","output":"z"}],` +
		`"previous_response_id":"resp_1"}`,
	`{"model":"\ud800"}`, `{"a":1,}`, `[]`, `{"model":"m","model":null}`, "{\"model\":\"\xff\"}", `{"messages":[{"content":{}}]}`, `{"n":01}`, `{"\u006dodel":"escaped key"}`,
}

// FuzzParse checks that Parse returns either a request or an error. A body that it accepts is valid JSON for
// encoding/json too, and both read the same strings.
func FuzzParse(f *testing.F) {
	for i, s := range seeds {
		f.Add(uint8(i), []byte(s))
	}
	f.Fuzz(func(t *testing.T, ep uint8, body []byte) {
		name := ""
		_ = EachMember(body, func(member string, from, to int) {
			if member == "model" {
				name = ShortString(bytes.TrimLeft(body[from:to][bytes.IndexByte(body[from:to], ':')+1:], " \t\r\n"))
			}
		})
		req, err := Parse(Endpoint(ep%5), body, Limits{})
		if err == nil && len(req.Model) <= maxShort && name != req.Model {
			t.Errorf("model %q and %q", req.Model, name)
		}
		if (req == nil) == (err == nil) {
			t.Fatalf("request %v and error %v", req, err)
		}
		if err != nil {
			var e *Error
			if !errors.As(err, &e) || e.Status != 400 || e.Message == "" || !json.Valid(e.JSON()) {
				t.Errorf("error %+v renders as %s", err, e.JSON())
			}
			if e.Code == "invalid_json" && json.Valid(body) && utf8.Valid(body) && blamesForm(e.Message) {
				t.Errorf("valid JSON is refused: %v", err)
			}
			return
		}
		if bytes.Contains(body, []byte("NaN")) || bytes.Contains(body, []byte("Infinity")) {
			return // engines in Python accept these words, and encoding/json does not
		}
		if !json.Valid(body) {
			t.Fatal("invalid JSON is accepted")
		}
		compareStrings(t, req, body)
	})
}

// blamesForm reports whether an invalid_json error blames the form of the JSON. The other ones name rules that only
// Parse has, such as its limit on nesting.
func blamesForm(message string) bool {
	for _, s := range []string{"lone surrogate", "too deeply", "must be a JSON object"} {
		if strings.Contains(message, s) {
			return false
		}
	}
	return true
}

// compareStrings compares the strings of a request with those that encoding/json reads from the body. It decodes
// into maps, because for struct fields encoding/json ignores the case of keys.
func compareStrings(t *testing.T, req *Request, body []byte) {
	var keys map[string]json.RawMessage
	if json.Unmarshal(body, &keys) != nil {
		t.Fatal("not an object")
	}
	for key, want := range map[string]string{"model": req.Model, "user": req.User, "cache_salt": req.CacheSalt} {
		var s string
		if req.Endpoint == Messages && key == "user" {
			continue // this API has no such member
		}
		if raw, ok := keys[key]; ok && json.Unmarshal(raw, &s) == nil && s != want {
			t.Errorf("%s is %q, want %q", key, want, s)
		}
	}
	var messages []map[string]json.RawMessage
	if req.Endpoint != Chat || json.Unmarshal(keys["messages"], &messages) != nil {
		return
	}
	if len(messages) != len(req.Messages) {
		t.Fatalf("%d messages, want %d", len(req.Messages), len(messages))
	}
	for i, m := range messages {
		var s string
		if raw, ok := m["content"]; ok && raw[0] == '"' && json.Unmarshal(raw, &s) == nil && s != req.Messages[i].Content {
			t.Errorf("content %q, want %q", req.Messages[i].Content, s)
		}
	}
}
