package speculate

import (
	"io/fs"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stator-project/stator/internal/models"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/prompt/openai"
)

// qwenLike drops the thinking of answers before the last user message, and writes an empty one for an answer at the end, as the
// template of Qwen3 does.
const qwenLike = `{%- set ns = namespace(last=0) -%}
{%- for m in messages -%}{%- if m.role == 'user' -%}{%- set ns.last = loop.index0 -%}{%- endif -%}{%- endfor -%}
{%- for m in messages -%}
<|im_start|>{{ m.role }}
{%- set content = m.content or '' -%}
{%- if '</think>' in content -%}{%- set content = content.split('</think>')[-1] -%}{%- endif -%}
{%- if m.role == 'assistant' and loop.index0 > ns.last and (loop.last or m.reasoning_content) -%}
{{ '\n<think>\n' ~ (m.reasoning_content or '') ~ '\n</think>\n' }}
{%- endif -%}
{{ '\n' ~ content }}
{%- for c in m.tool_calls or [] -%}{{ '\n<tool_call>' ~ c.function.name ~ (c.function.arguments | tojson) ~ '</tool_call>' }}{%- endfor -%}
<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n<think>\n' }}{%- endif -%}`

// load returns the simulated model with another chat template, or its own if that is empty.
func load(t *testing.T, template string) *prompt.Model {
	t.Helper()
	files := fstest.MapFS{}
	for _, name := range []string{"tokenizer.json", "tokenizer_config.json", "config.json", "chat_template.jinja"} {
		data, err := fs.ReadFile(models.Sim(), name)
		if err != nil {
			t.Fatal(err)
		}
		if name == "chat_template.jinja" && template != "" {
			data = []byte(template)
		}
		files[name] = &fstest.MapFile{Data: data}
	}
	m, err := prompt.Load(files)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// conversation is one by an API.
type conversation struct {
	endpoint prompt.Endpoint
	more     string // members of the request
}

// parse returns the request with these messages or items, which are JSON texts.
func (c conversation) parse(t *testing.T, list ...string) *prompt.Request {
	t.Helper()
	member := "messages"
	if c.endpoint == prompt.Responses {
		member = "input"
	}
	req, err := openai.Parse(c.endpoint, []byte(`{"model":"m"`+c.more+`,"`+member+`":[`+strings.Join(list, ",")+`]}`), openai.Limits{})
	if err != nil || req.Unread != openai.WhyRead {
		t.Fatalf("%v %v", err, req)
	}
	return req
}

// tokens returns the tokens of the prompt with these messages or items.
func (c conversation) tokens(t *testing.T, m *prompt.Model, list ...string) []uint32 {
	t.Helper()
	var p prompt.Prompt
	if err := m.Prepare(c.parse(t, list...), &p); err != nil || p.Unread != openai.WhyRead {
		t.Fatalf("%v %v", err, p.Unread)
	}
	return p.Tokens
}

// TestPrefixOfTheNextTurn: the prompt of the next turn begins with the prefix, which has the whole answer as clients send it back.
func TestPrefixOfTheNextTurn(t *testing.T) {
	const block = 4
	const user, next = `{"role":"user","content":"What is the colour of the sea?"}`, `{"role":"user","content":"\nAnd of the sky?"}`
	const words = "It is blue, as a rule, and green where it is not deep. "
	call := func(id string) string {
		return `"tool_calls":[{"id":"` + id + `","type":"function","function":{"name":"look","arguments":"{\"at\": \"sea\"}"}}]`
	}
	chat := func(members string) string {
		return `{"choices":[{"index":0,"message":{"role":"assistant",` + members + `},"finish_reason":"stop"}]}`
	}
	earlier := []string{user, `{"role":"assistant","content":"Blue.","reasoning":"Sea."}`, user}

	// The same answers by the two APIs of agents, whose clients send back all parts.
	const thinking, text = `{"type":"thinking","thinking":"` + words + `","signature":"s"}`, `{"type":"text","text":"` + words + `"}`
	const use = `{"type":"tool_use","id":"c1","name":"look","input":{"at":"sea"}}`
	const result = `{"role":"user","content":[{"type":"tool_result","tool_use_id":"c1","content":"blue"}]}`
	message := func(blocks ...string) string {
		return `{"role":"assistant","content":[` + strings.Join(blocks, ",") + `],"stop_reason":"end_turn"}`
	}
	const reasoning = `{"type":"reasoning","id":"rs_1","summary":[],"content":[{"type":"reasoning_text","text":"` + words + `"}],"status":null}`
	const item = `{"type":"message","id":"msg_1","role":"assistant","status":"completed","content":[{"type":"output_text","text":"` + words +
		`","annotations":[]}]}`
	const function = `{"type":"function_call","id":"fc_1","call_id":"c1","name":"look","arguments":"{\"at\": \"sea\"}","status":"completed"}`
	const output = `{"type":"function_call_output","call_id":"c1","output":"blue"}`
	response := func(items ...string) string {
		return `{"status":"completed","output":[` + strings.Join(items, ",") + `]}`
	}
	inMessages := conversation{prompt.Messages, `,"max_tokens":9,"system":"You look.","tools":[{"name":"look","input_schema":{}}]`}
	inResponses := conversation{prompt.Responses, `,"instructions":"You look.","truncation":"auto"`}

	for _, c := range []struct {
		name, template string
		conversation
		before []string
		answer string
		back   []string // the answer as a client sends it back
		next   string
		least  int // tokens of the prefix after the prompt's
	}{
		{"thinking is dropped", qwenLike, conversation{}, []string{user}, chat(`"reasoning":"Well.","content":"` + words + `"`),
			[]string{`{"role":"assistant","content":"` + words + `"}`}, next, 10},
		{"thinking in the text is dropped", qwenLike, conversation{}, []string{user}, chat(`"content":"Well.</think>` + words + `"`),
			[]string{`{"role":"assistant","content":"Well.</think>` + words + `"}`}, next, 10},
		{"a plain template", "", conversation{}, []string{user}, chat(`"reasoning":"Well.","content":"` + words + `"`),
			[]string{`{"role":"assistant","content":"` + words + `"}`}, next, 10},
		{"a call of a tool", "", conversation{}, []string{user}, chat(`"content":null,` + call("c1")),
			[]string{`{"role":"assistant","content":null,` + call("c1") + `}`}, `{"role":"tool","tool_call_id":"c1","content":"blue"}`, 10},
		{"a call after thinking that the client keeps", qwenLike, conversation{}, earlier, chat(`"reasoning":"` + words + `","content":null,` + call("c2")),
			[]string{`{"role":"assistant","content":null,"reasoning":"` + words + `",` + call("c2") + `}`},
			`{"role":"tool","tool_call_id":"c2","content":"blue"}`, 20},

		{"a message", qwenLike, inMessages, []string{user}, message(thinking, text), []string{message(thinking, text)}, next, 10},
		{"a message with a plain template", "", inMessages, []string{user}, message(text), []string{message(text)}, next, 10},
		{"a message with a call", qwenLike, inMessages, []string{user}, message(thinking, text, use), []string{message(thinking, text, use)}, result, 25},
		{"a message of a client that drops thinking", qwenLike, inMessages, []string{user, message(text, use), result}, message(thinking, text, use),
			[]string{message(text, use)}, result, 15},
		{"a response", qwenLike, inResponses, []string{user}, response(reasoning, item), []string{reasoning, item}, next, 10},
		{"a response with a plain template", "", inResponses, []string{user}, response(item), []string{item}, next, 10},
		{"a response with a call", qwenLike, inResponses, []string{user}, response(reasoning, item, function), []string{reasoning, item, function},
			output, 25},
		{"a response of a client that drops thinking", qwenLike, inResponses, []string{user, item, function, output},
			response(reasoning, item, function), []string{item, function}, output, 15},
	} {
		m := load(t, c.template)
		a := newAnswer(c.endpoint, false)
		a.write([]byte(c.answer))
		if !a.end() {
			t.Fatalf("%s: the answer is not read", c.name)
		}
		prefix, err := nextPrefix(m, c.parse(t, c.before...), &a, block, time.Time{})
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		whole := c.tokens(t, m, slices.Concat(c.before, c.back, []string{c.next})...)
		before := len(c.tokens(t, m, c.before...))
		same := commonLength(prefix, whole)
		if same < len(prefix) || len(prefix)%block != 0 || same < before+c.least {
			t.Errorf("%s: %d of %d tokens of the prefix are the next prompt's, of %d; the prompt had %d", c.name, same, len(prefix), len(whole), before)
		}
	}
}

// TestNoPrefix: conversations whose next prompt is not known have no prefix.
func TestNoPrefix(t *testing.T) {
	const user = `{"role":"user","content":"x"}`
	for name, c := range map[string]struct {
		endpoint prompt.Endpoint
		body     string
	}{
		"a continued message": {prompt.Chat, `{"model":"m","messages":[` + user + `,{"role":"assistant","content":"y"}],` +
			`"continue_final_message":true,"add_generation_prompt":false}`},
		"a truncated prompt":             {prompt.Chat, `{"model":"m","messages":[` + user + `],"truncate_prompt_tokens":8}`},
		"a template":                     {prompt.Chat, `{"model":"m","messages":[` + user + `],"chat_template":"x"}`},
		"a message that begins":          {prompt.Messages, `{"model":"m","messages":[` + user + `,{"role":"assistant","content":"y"}]}`},
		"an item of another kind":        {prompt.Responses, `{"model":"m","input":[` + user + `,{"type":"item_reference","id":"x"}]}`},
		"a conversation that was stored": {prompt.Responses, `{"model":"m","input":"x","previous_response_id":"resp_1"}`},
	} {
		req, err := openai.Parse(c.endpoint, []byte(c.body), openai.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		a := newAnswer(c.endpoint, false)
		a.write([]byte(map[prompt.Endpoint]string{
			prompt.Chat:      `{"choices":[{"index":0,"message":{"content":"a"},"finish_reason":"stop"}]}`,
			prompt.Messages:  `{"content":[{"type":"text","text":"a"}],"stop_reason":"end_turn"}`,
			prompt.Responses: `{"output":[{"type":"message","role":"assistant","content":"a"}],"status":"completed"}`,
		}[c.endpoint]))
		if !a.end() {
			t.Fatalf("%s: the answer is not read", name)
		}
		if prefix, err := nextPrefix(load(t, ""), req, &a, 4, time.Time{}); err == nil {
			t.Errorf("%s: %d tokens", name, len(prefix))
		}
	}
}
