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

// tokensOf returns the tokens of a chat with these messages, which are JSON texts.
func tokensOf(t *testing.T, m *prompt.Model, messages ...string) []uint32 {
	t.Helper()
	req, err := openai.Parse(openai.Chat, []byte(`{"model":"m","messages":[`+strings.Join(messages, ",")+`]}`), openai.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	var p prompt.Prompt
	if err := m.Prepare(req, &p); err != nil || p.Unread != openai.WhyRead {
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
	earlier := []string{user, `{"role":"assistant","content":"Blue.","reasoning":"Sea."}`, user}

	for _, c := range []struct {
		name, template string
		before         []string
		delta, back    string // the answer, and as a client sends it back
		next           string
		least          int // tokens of the prefix after the prompt's
	}{
		{"thinking is dropped", qwenLike, []string{user}, `"reasoning":"Well.","content":"` + words + `"`,
			`{"role":"assistant","content":"` + words + `"}`, next, 10},
		{"thinking in the text is dropped", qwenLike, []string{user}, `"content":"Well.</think>` + words + `"`,
			`{"role":"assistant","content":"Well.</think>` + words + `"}`, next, 10},
		{"a plain template", "", []string{user}, `"reasoning":"Well.","content":"` + words + `"`,
			`{"role":"assistant","content":"` + words + `"}`, next, 10},
		{"a call of a tool", "", []string{user}, `"content":null,` + call("c1"), `{"role":"assistant","content":null,` + call("c1") + `}`,
			`{"role":"tool","tool_call_id":"c1","content":"blue"}`, 10},
		{"a call after thinking that the client keeps", qwenLike, earlier, `"reasoning":"` + words + `","content":null,` + call("c2"),
			`{"role":"assistant","content":null,"reasoning":"` + words + `",` + call("c2") + `}`,
			`{"role":"tool","tool_call_id":"c2","content":"blue"}`, 20},
	} {
		m := load(t, c.template)
		req, err := openai.Parse(openai.Chat, []byte(`{"model":"m","messages":[`+strings.Join(c.before, ",")+`]}`), openai.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		a := answer{}
		a.write([]byte(`{"choices":[{"index":0,"message":{"role":"assistant",` + c.delta + `},"finish_reason":"stop"}]}`))
		if !a.end() {
			t.Fatalf("%s: the answer is not read", c.name)
		}
		prefix, err := nextPrefix(m, req, &a, block, time.Time{})
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		whole := tokensOf(t, m, append(slices.Clone(c.before), c.back, c.next)...)
		same := commonLength(prefix, whole)
		if same < len(prefix) || len(prefix)%block != 0 || same < len(tokensOf(t, m, c.before...))+c.least {
			t.Errorf("%s: %d of %d tokens of the prefix are the next prompt's, of %d; the prompt had %d", c.name, same, len(prefix),
				len(whole), len(tokensOf(t, m, c.before...)))
		}
	}
}

// TestNoPrefix: conversations whose next prompt is not known have no prefix.
func TestNoPrefix(t *testing.T) {
	for name, body := range map[string]string{
		"a continued message": `{"model":"m","messages":[{"role":"user","content":"x"},{"role":"assistant","content":"y"}],` +
			`"continue_final_message":true,"add_generation_prompt":false}`,
		"a truncated prompt": `{"model":"m","messages":[{"role":"user","content":"x"}],"truncate_prompt_tokens":8}`,
		"a template":         `{"model":"m","messages":[{"role":"user","content":"x"}],"chat_template":"x"}`,
	} {
		req, err := openai.Parse(openai.Chat, []byte(body), openai.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		if prefix, err := nextPrefix(load(t, ""), req, &answer{content: []byte("a")}, 4, time.Time{}); err == nil {
			t.Errorf("%s: %d tokens", name, len(prefix))
		}
	}
}
