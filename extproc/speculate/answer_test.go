package speculate

import (
	"strings"
	"testing"

	"github.com/stator-project/stator/internal/prompt/openai"
)

// chunk is an event of a stream with a delta and the rest of its choice.
func chunk(delta, rest string) string {
	return `data: {"id":"a","object":"chat.completion.chunk","choices":[{"index":0,"delta":{` + delta + `},"logprobs":null` + rest + "}]}\n\n"
}

const (
	ends  = `,"finish_reason":"stop"`
	usage = `data: {"id":"a","choices":[],"usage":{"prompt_tokens":1}}` + "\n\ndata: [DONE]\n\n"
)

// TestAnswers reads answers in pieces of several sizes. Those that are not whole, or not understood, are not used.
func TestAnswers(t *testing.T) {
	calls := `[{"id":"c1","type":"function","function":{"name":"f","arguments":"{\"a\": 1}"}},` +
		`{"id":"c2","type":"function","function":{"name":"g","arguments":"{}"}}]`
	for _, c := range []struct {
		name, body         string
		stream, ok         bool
		content, reasoning string
		calls              string
	}{
		{"a stream", ": ping\n\nevent: x\n" + chunk(`"role":"assistant","content":""`, "") + chunk(`"reasoning":"I th"`, "") +
			chunk(`"reasoning":"ink"`, `,"finish_reason":null`) + chunk(`"content":"a \"b\"\u00e9"`, "") + chunk(`"content":"c"`, ends) + usage,
			true, true, `a "b"éc`, "I think", ""},
		{"both names of thinking", chunk(`"reasoning":"x","reasoning_content":"x"`, "") + chunk(`"content":"c"`, ends), true, true, "c", "x", ""},
		{"the older name", chunk(`"reasoning_content":"x"`, "") + chunk(`"content":"c"`, `,"finish_reason":"length"`), true, true, "c", "x", ""},
		{"calls", chunk(`"content":null,"tool_calls":[{"index":0,"id":"c1","type":"function","function":{"name":"f","arguments":""}}]`, "") +
			chunk(`"tool_calls":[{"index":0,"function":{"arguments":"{\"a\": 1}"}}]`, "") +
			chunk(`"tool_calls":[{"index":1,"id":"c2","type":"function","function":{"name":"g","arguments":"{}"}}]`, "") +
			chunk(``, `,"finish_reason":"tool_calls"`), true, true, "", "", calls},
		{"a whole answer", `{"id":"a","choices":[{"index":0,"message":{"role":"assistant","content":null,"tool_calls":` + calls +
			`,"reasoning":"r"},"finish_reason":"tool_calls"}],"usage":{}}`, false, true, "", "r", calls},
		{"without an end", chunk(`"content":"c"`, ""), true, false, "", "", ""},
		{"aborted", chunk(`"content":"c"`, `,"finish_reason":"abort"`), true, false, "", "", ""},
		{"an error", chunk(`"content":"c"`, "") + `data: {"error":{"code":"stream_broken"}}` + "\n\n", true, false, "", "", ""},
		{"an error after the end", chunk(`"content":"c"`, ends) + `data: {"error":{"code":"x"}}` + "\n\n", true, false, "", "", ""},
		{"two choices", `{"choices":[{"index":0,"message":{"content":"a"},"finish_reason":"stop"},{"index":1}]}`, false, false, "", "", ""},
		{"another choice", strings.Replace(chunk(`"content":"c"`, ends), `"index":0`, `"index":1`, 1), true, false, "", "", ""},
		{"a part of a JSON text", `{"choices":[{"index":0,"message":{"content":"a"},"finish_reason":"stop"}`, false, false, "", "", ""},
		{"calls out of order", chunk(`"tool_calls":[{"index":4,"id":"c"}]`, ends), true, false, "", "", ""},
		{"a call of another type", chunk(`"tool_calls":[{"index":0,"type":"custom"}]`, ends), true, false, "", "", ""},
		{"no JSON", "data: x\n\n", true, false, "", "", ""},
		{"a list", "[]", false, false, "", "", ""},
		{"nothing", "", false, false, "", "", ""},
	} {
		for _, size := range []int{1, 7, 1 << 16} {
			a := answer{stream: c.stream}
			for rest := c.body; rest != ""; {
				n := min(size, len(rest))
				a.write([]byte(rest[:n]))
				rest = rest[n:]
			}
			if ok := a.end(); ok != c.ok {
				t.Errorf("%s in pieces of %d: used %v, want %v", c.name, size, ok, c.ok)
			}
			if !c.ok {
				continue
			}
			m := a.message(openai.ReasoningMember)
			if m.Content != c.content || m.Reasoning != c.reasoning || string(m.ToolCalls) != strings.ReplaceAll(c.calls, `,{"id"`, `,{"id"`) {
				t.Errorf("%s in pieces of %d: %q, thinking %q, calls %s", c.name, size, m.Content, m.Reasoning, m.ToolCalls)
			}
			if m := a.message(0); m.Reasoning != "" || m.Has&openai.ReasoningMember != 0 {
				t.Errorf("%s: thinking is sent back by a client that does not", c.name)
			}
		}
	}
}

// TestAnswersAreBounded: a line, a JSON text and all texts together have bounds.
func TestAnswersAreBounded(t *testing.T) {
	long := answer{stream: true}
	long.write([]byte("data: " + strings.Repeat("x", maxLine)))
	whole := answer{}
	whole.write(make([]byte, MaxAnswer))
	whole.write([]byte("x"))
	many := answer{stream: true}
	event := chunk(`"content":"`+strings.Repeat("x", 32<<10)+`"`, "")
	for range MaxAnswer/(32<<10) + 2 {
		many.write([]byte(event))
	}
	for name, a := range map[string]*answer{"a line": &long, "a JSON text": &whole, "all texts": &many} {
		if a.end() || !a.large || len(a.held) > MaxAnswer || len(a.content) > MaxAnswer+32<<10 {
			t.Errorf("%s: large %v, %d bytes are held", name, a.large, len(a.held))
		}
	}
}

// FuzzAnswer reads any bytes, in two pieces.
func FuzzAnswer(f *testing.F) {
	f.Add([]byte(chunk(`"content":"c"`, ends)), 5, true)
	f.Add([]byte(`{"choices":[{"index":0,"message":{"content":"a"},"finish_reason":"stop"}]}`), 9, false)
	f.Fuzz(func(t *testing.T, body []byte, at int, stream bool) {
		at = min(max(at, 0), len(body))
		one, two := answer{stream: stream}, answer{stream: stream}
		one.write(body)
		two.write(body[:at])
		two.write(body[at:])
		ok, same := one.end(), two.end()
		if ok != same || ok && string(one.content) != string(two.content) {
			t.Errorf("in one piece %v %q, in two %v %q", ok, one.content, same, two.content)
		}
	})
}
