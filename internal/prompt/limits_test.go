package prompt_test

import (
	"runtime"
	"strings"
	"testing"

	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/prompt/openai"
)

// allocated returns the bytes that run allocates in all, freed ones included.
func allocated(run func()) int {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	run()
	runtime.ReadMemStats(&after)
	return int(after.TotalAlloc - before.TotalAlloc)
}

// fill returns a body of about n bytes: head, as many copies of element as fit, and tail.
func fill(head, element, tail string, n int) string {
	return head + strings.Repeat(element, (n-len(head)-len(tail))/len(element)) + tail
}

// TestNoBodyCostsManyTimesItsSize parses and prepares the most expensive bodies. Each allocates at most a
// few times its size and a constant, whether it is accepted or refused.
func TestNoBodyCostsManyTimesItsSize(t *testing.T) {
	const size = 4 << 20
	chat := `{"model":"m","messages":[{"role":"user","content":"hi"}],`
	user := `{"model":"m","messages":[{"role":"user","content":`
	calls := `{"model":"m","messages":[{"role":"assistant","content":"x","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":`
	call := `{"id":"","type":"function","function":{"name":"","arguments":""}},`
	m := sim(t)

	for _, c := range []struct {
		name string
		ep   prompt.Endpoint
		body string
	}{
		{"numbers in kwargs", prompt.Chat, fill(chat+`"chat_template_kwargs":{"x":[`, `0,`, `0]}}`, size)},
		{"dicts in kwargs", prompt.Chat, fill(chat+`"chat_template_kwargs":{"x":[`, `{},`, `0]}}`, size)},
		{"keys in kwargs", prompt.Chat, fill(chat+`"chat_template_kwargs":{"x":[`, `{"":{"":0}},`, `0]}}`, size)},
		{"tools", prompt.Chat, fill(chat+`"tools":[`, `{"function":{"name":"f"}},`, `{"function":{"name":"f"}}]}`, size)},
		{"tools again and again", prompt.Chat, fill(chat, `"tools":[{}],`, `"n":1}`, size)},
		{"documents", prompt.Chat, fill(chat+`"documents":[`, `{"a":""},`, `{"a":""}]}`, size)},
		{"tool calls", prompt.Chat, fill(user+`"x"},{"role":"assistant","tool_calls":[`,
			call, `{}]}]}`, size)},
		{"arguments of a call", prompt.Chat, fill(calls+`"[`, `0,`, `0]"}}]}]}`, size)},
		{"arguments of many calls", prompt.Chat, fill(user+`"x"},{"role":"assistant","tool_calls":[`,
			`{"id":"","type":"function","function":{"name":"","arguments":"{\"a\":[`+strings.Repeat("0,", 200)+`0]}"}},`, `{}]}]}`, size)},
		{"members of parts", prompt.Chat, fill(user+`[{"type":"text","text":"x","extra":[`, `0,`, `0]}]}]}`, size)},
		{"a developer's tools", prompt.Chat, fill(`{"model":"m","messages":[{"role":"developer","content":"x","tools":[`, `0,`, `0]}]}`, size)},
		{"messages", prompt.Chat, fill(`{"model":"m","messages":[`, `{"role":"user"},`, `{"role":"user"}]}`, size)},
		{"few messages again and again", prompt.Chat, fill(chat, `"messages":[{"role":"user"}],`, `"n":1}`, size)},
		{"parts", prompt.Chat, fill(user+`[`, `"",`, `""]}]}`, size)},
		{"parts of many messages", prompt.Chat, fill(`{"model":"m","messages":[`, user[len(`{"model":"m","messages":[`):]+
			`[`+strings.Repeat(`"",`, 4000)+`{"type":"text","text":""}]},`, `{"role":"user"}]}`, size)},
		{"content again and again", prompt.Chat, fill(user+`"x"`, `,"content":[""]`, `}]}`, size)},
		{"prompts", prompt.Completions, fill(`{"model":"m","prompt":[`, `"a",`, `"a"]}`, size)},
		{"empty prompts", prompt.Completions, fill(`{"model":"m","prompt":[`, `[0],`, `[0]]}`, size)},
		{"one prompt again and again", prompt.Completions, fill(`{"model":"m"`, `,"prompt":"a"`, `}`, size)},
		{"token ids", prompt.Completions, fill(`{"model":"m","prompt":[`, `0,`, `0]}`, size)},
		{"token ids again and again", prompt.Completions, fill(`{"model":"m"`, `,"prompt":[0]`, `}`, size)},
		{"hints again and again", prompt.Chat, fill(chat, `"nvext":{},`, `"n":1}`, size)},
		{"taints again and again", prompt.Chat, fill(chat+`"nvext":{"routing_constraints":{`, `"required_taints":["a","a"],`, `"x":0}}}`, size)},
		{"weights again and again", prompt.Chat, fill(chat+`"nvext":{"routing_constraints":{`, `"preferred_taints":{"a":1},`, `"x":0}}}`, size)},
		{"workers again and again", prompt.Chat, fill(chat+`"nvext":{"router":{`, `"allowed_workers":["a"],`, `"x":0}}}`, size)},
		{"numbers again and again", prompt.Chat, fill(chat, `"n":1,`, `"n":1}`, size)},
		{"short strings with escapes", prompt.Chat, fill(chat, `"\n":0,`, `"n":1}`, size)},
		{"nested arrays", prompt.Chat, fill(chat+`"x":[`, `[[]],`, `0]}`, size)},
		{"as many numbers as accepted", prompt.Chat, fill(chat+`"chat_template_kwargs":{"x":[`, `0,`, `0]}}`, 262_000)},
		{"as many dicts as accepted", prompt.Chat, fill(chat+`"chat_template_kwargs":{"x":[`, `{"":{}},`, `0]}}`, 349_000)},
		{"as many keys as accepted", prompt.Chat, fill(chat+`"tools":[`, `{"function":{"name":"f"}},`, `{"function":{"name":"f"}}]}`, 540_000)},
		{"as many calls as accepted", prompt.Chat, fill(user+`"x"},{"role":"assistant","tool_calls":[`,
			call, call[:len(call)-1]+`]}]}`, 780_000)},
		{"as many messages as accepted", prompt.Chat, fill(`{"model":"m","messages":[`, `{"role":"user"},`, `{"role":"user"}]}`, 262_000)},
		{"as many parts as accepted", prompt.Chat, fill(user+`[`, `{"type":"text","text":""},`, `""]}]}`, 425_000)},
		{"nested objects", prompt.Chat, fill(chat+`"x":[`, `{"":{}},`, `0]}`, size)},
	} {
		t.Run(c.name, func(t *testing.T) {
			var p prompt.Prompt
			var err error
			bytes := allocated(func() {
				var req *prompt.Request
				req, err = openai.Parse(c.ep, []byte(c.body), openai.Limits{})
				if err == nil {
					err = m.Prepare(req, &p)
				}
			}) - len(c.body) // the copy of the body that the conversion makes

			if most := 2*len(c.body) + 64<<20; bytes > most {
				t.Errorf("a body of %d KiB allocates %d KiB, more than %d: %.200v", len(c.body)>>10, bytes>>10, most>>10, err)
			}
			t.Logf("%d KiB of body, %d KiB allocated, error %.100v", len(c.body)>>10, bytes>>10, err)
		})
	}
}
