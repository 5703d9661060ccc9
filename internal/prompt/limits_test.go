package prompt_test

import (
	"errors"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/prompt/openai"
	"github.com/stator-project/stator/test/race"
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

// TestNoBodyCostsManyTimesItsSize parses and prepares the most expensive bodies. Each allocates at most twice its
// size and 48 MiB, whether it is accepted or refused.
func TestNoBodyCostsManyTimesItsSize(t *testing.T) {
	race.Skip(t)
	const size = 2 << 20
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
		{"escapes", prompt.Chat, fill(user+`"`, `\n`, `"}]}`, size)},
		{"one word", prompt.Chat, fill(user+`"`, `a`, `"}]}`, size)},
		{"words", prompt.Chat, fill(user+`"`, `the end `, `"}]}`, size)},
		{"a long description", prompt.Chat, fill(chat+`"tools":[{"function":{"name":"f","description":"`, `a\n`, `"}}]}`, size)},
		{"a long argument", prompt.Chat, fill(calls+`"{\"a\":\"`, `a\\n`, `\"}"}}]}]}`, size)},
		{"a long template argument", prompt.Chat, fill(chat+`"chat_template_kwargs":{"x":"`, `a\n`, `"}}`, size)},
		{"a long part", prompt.Chat, fill(user+`[{"type":"text","text":"`, `a\n`, `","more":1}]}]}`, size)},
		{"a long key", prompt.Chat, fill(chat+`"chat_template_kwargs":{"`, `a\n`, `":1}}`, size)},
		{"a long role", prompt.Chat, fill(`{"model":"m","messages":[{"role":"`, `a\n`, `","content":"x"}]}`, size)},
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
		{"blocks", prompt.Messages, fill(user+`[`, `{},`, `{}]}]}`, size)},
		{"as many blocks as accepted", prompt.Messages, fill(user+`[`, `{"type":"text","text":"a"},`, `{"type":"text"}]}]}`, 425_000)},
		{"blocks again and again", prompt.Messages, fill(user+`"x"`, `,"content":[{}]`, `}]}`, size)},
		{"systems again and again", prompt.Messages, fill(`{"model":"m",`, `"system":[{"type":"text","text":"a\n"}],`, `"messages":[]}`, size)},
		{"long blocks", prompt.Messages, fill(user+`[{"type":"text","text":"x"}]},{"role":"system","content":[`,
			`{"type":"text","text":"`+strings.Repeat(`a\n`, 1000)+`"},`, `{"type":"text","text":""}]}]}`, size)},
		{"a long result", prompt.Messages, fill(user+`[{"type":"tool_result","content":[`,
			`{"type":"text","text":"`+strings.Repeat(`a\n`, 1000)+`"},`, `{"type":"text","text":""}]}]}]}`, size)},
		{"long thinking", prompt.Messages, fill(`{"model":"m","messages":[{"role":"assistant","content":[`,
			`{"type":"thinking","thinking":"`+strings.Repeat(`a\n`, 1000)+`"},`, `{"type":"text","text":""}]}]}`, size)},
		{"results", prompt.Messages, fill(user+`[`, `{"type":"tool_result"},`, `{"type":"text","text":""}]}]}`, size)},
		{"results again and again", prompt.Messages, fill(user+`[{"type":"tool_result"`, `,"content":[{"type":"image","source":{}}]`, `}]}]}`, size)},
		{"uses of tools", prompt.Messages, fill(`{"model":"m","messages":[{"role":"assistant","content":[`,
			`{"type":"tool_use","id":"1","input":{"":0}},`, `{"type":"text","text":""}]}]}`, 700_000)},
		{"tools of messages", prompt.Messages, fill(user+`"x"}],"tools":[`, `{"name":"f","input_schema":{}},`, `{}]}`, size)},
		{"as many tools of messages as accepted", prompt.Messages, fill(user+`"x"}],"tools":[`,
			`{"name":"f","input_schema":{}},`, `{"name":"f","input_schema":{}}]}`, 780_000)},
		{"system messages within a conversation", prompt.Messages, fill(user+`"x"},`,
			`{"role":"system","content":"a\n"},`, `{"role":"user","content":"x"}]}`, 500_000)},
		{"items", prompt.Responses, fill(`{"model":"m","input":[`, `{},`, `{}]}`, size)},
		{"as many items as accepted", prompt.Responses, fill(`{"model":"m","input":[`,
			`{"role":"user","content":"a"},`, `{"role":"user","content":"a"}]}`, 480_000)},
		{"as many parts of items as accepted", prompt.Responses, fill(`{"model":"m","input":[{"role":"user","content":[`,
			`{"type":"input_text","text":""},`, `{"type":"input_text","text":""}]}]}`, 500_000)},
		{"input again and again", prompt.Responses, fill(`{"model":"m"`, `,"input":[{"role":"user","content":"x"}]`, `}`, size)},
		{"content of an item again and again", prompt.Responses, fill(`{"model":"m","input":[{"role":"user"`,
			`,"content":[{"type":"input_text","text":"x"}]`, `}]}`, size)},
		{"calls", prompt.Responses, fill(`{"model":"m","input":[`, `{"type":"function_call","call_id":"","name":"","arguments":"{\"\":0}"},`,
			`{"role":"user","content":""}]}`, 1_000_000)},
		{"a long custom input", prompt.Responses, fill(`{"model":"m","input":[{"type":"custom_tool_call","call_id":"","name":"","input":"`,
			`a\n`, `"}]}`, size)},
		{"custom tools", prompt.Responses, fill(`{"model":"m","input":"x","tools":[`, `{"type":"custom","name":"f"},`, `{"type":"mcp"}]}`, 700_000)},
		{"namespaces", prompt.Responses, fill(`{"model":"m","input":"x","tools":[{"type":"namespace","name":"`+strings.Repeat("n", 1000)+`","description":"","tools":[`,
			`{"type":"function","name":"f"},`, `{"type":"custom"}]}]}`, 700_000)},
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

			if most := 2*len(c.body) + 48<<20; bytes > most {
				t.Errorf("a body of %d KiB allocates %d KiB, more than %d: %.200v", len(c.body)>>10, bytes>>10, most>>10, err)
			}
			t.Logf("%d KiB of body, %d KiB allocated, error %.100v", len(c.body)>>10, bytes>>10, err)
		})
	}
}

// TestLongPromptsAreRefusedEarly prepares prompts that cannot fit. Memory is a measure of the work: ids are
// computed only until they are too many.
func TestLongPromptsAreRefusedEarly(t *testing.T) {
	const size = 16 << 20
	m := sim(t)
	for name, c := range map[string]struct{ text, more, want string }{
		"by its length": {strings.Repeat("=", size), "", "contains at least "},
		"words":         {strings.Repeat("the end ", size/32), "", "contains more than 131072 input tokens"},
		"truncated":     {strings.Repeat("the end ", size/8), `,"truncate_prompt_tokens":7,"truncation_side":"right"`, ""},
	} {
		req := parse(t, prompt.Completions, `{"model":"m","prompt":"`+c.text+`"`+c.more+`}`)
		p := prompt.Prompt{Text: make([]byte, 0, size)}
		var err error
		bytes := allocated(func() { err = m.Prepare(req, &p) })

		if c.want == "" && (err != nil || len(p.Tokens) != 7) || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %d tokens, error %v, want %q", name, len(p.Tokens), err, c.want)
		}
		if bytes > 8<<20 || cap(p.Tokens) > 1<<19 {
			t.Errorf("%s: %d KiB are allocated, and %d tokens", name, bytes>>10, cap(p.Tokens))
		}
	}
}

// TestTruncatedAtTheBeginning compares a prompt that is truncated at its beginning with the whole prompt.
func TestTruncatedAtTheBeginning(t *testing.T) {
	m := sim(t)
	var whole, cut prompt.Prompt
	body := `{"model":"m","prompt":"` + strings.Repeat("the end ", 1000)
	if err := m.Prepare(parse(t, prompt.Completions, body+`"}`), &whole); err != nil {
		t.Fatal(err)
	}
	if err := m.Prepare(parse(t, prompt.Completions, body+`","truncate_prompt_tokens":9}`), &cut); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(cut.Tokens, whole.Tokens[len(whole.Tokens)-9:]) {
		t.Errorf("%d, want the end of %d", cut.Tokens, whole.Tokens[len(whole.Tokens)-9:])
	}
}

// TestPrepareStops closes Done before Prepare and while a template runs.
func TestPrepareStops(t *testing.T) {
	done := make(chan struct{})
	close(done)
	looping, err := sim(t).WithTemplate(`{% for a in range(100000) %}{% for b in range(1000) %}{{ a }}{% endfor %}{% endfor %}`)
	if err != nil {
		t.Fatal(err)
	}

	memory := prompt.NewMemory(prompt.MemoryConfig{MaxBytes: 1 << 20, Seed: 1})
	chat := parse(t, prompt.Chat, `{"model":"m","messages":[{"role":"user","content":"`+strings.Repeat("the end ", 1<<13)+`"}]}`)
	prompts := parse(t, prompt.Completions, `{"model":"m","prompt":["a","b"]}`)
	for name, c := range map[string]struct {
		model *prompt.Model
		req   *prompt.Request
	}{
		"a chat": {sim(t), chat}, "a chat with a memory": {sim(t).WithMemory(memory), chat}, "a long template": {looping, chat},
		"prompts": {sim(t), prompts},
	} {
		p := prompt.Prompt{Done: done}
		if err := c.model.Prepare(c.req, &p); !errors.Is(err, prompt.ErrStopped) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := memory.Stats().Entries; n != 0 {
		t.Errorf("the memory keeps %d entries of a stopped request", n)
	}
}
