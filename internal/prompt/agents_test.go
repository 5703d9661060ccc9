package prompt_test

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stator-project/stator/internal/models"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/prompt/openai"
)

// agentText is a template that writes all that it gets.
const agentText = `{{ messages | tojson }}{{ ' ' ~ tools | tojson if tools is defined and tools is not none }}` +
	`{{ ' ' ~ reasoning_effort if reasoning_effort is defined }}{{ '' if add_generation_prompt else ' no prompt' }}`

// TestPreparedFromAgents checks the chats that requests of Messages and Responses become. Each chat in the file was observed with vLLM
// 0.32.0; `make oracle-vllm-agents` compares with a running server. Forms whose conversion is not known exactly are left unread, for the
// reason in the file.
func TestPreparedFromAgents(t *testing.T) {
	text, err := sim(t).WithTemplate(agentText)
	if err != nil {
		t.Fatal(err)
	}
	strict, err := sim(t).WithTemplate(`{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('late') }}{% endif %}{% endfor %}` + agentText)
	if err != nil {
		t.Fatal(err)
	}
	parts, err := sim(t).WithTemplate(`{% for m in messages %}{% for p in m.content %}{% endfor %}{% endfor %}` + agentText)
	if err != nil {
		t.Fatal(err)
	}

	models := map[string]*prompt.Model{"text": text, "strict": strict, "parts": parts}
	cases, err := os.ReadFile("testdata/agents.txt")
	if err != nil {
		t.Fatal(err)
	}

	read, unread := 0, 0
	for _, c := range strings.Split(strings.TrimSpace(string(cases)), "\n\n") {
		value := map[string]string{}
		for _, line := range strings.Split(c, "\n") {
			name, text, _ := strings.Cut(line, ": ")
			value[name] = text
		}
		ep, _ := openai.EndpointOf(value["api"])
		req := parse(t, ep, `{"model":"m",`+value["request"][1:])

		var p prompt.Prompt
		err := models[value["template"]].Prepare(req, &p)
		if err != nil || p.Unread.String() != value["unread"] || string(p.Text) != value["chat"] || (len(p.Tokens) == 0) != (value["unread"] != "") {
			t.Errorf("%v, unread %q, %d tokens\n%s, want\n%s", err, p.Unread, len(p.Tokens), p.Text, c)
		}
		read++
		if value["unread"] != "" {
			unread++
		}
	}
	if read < 50 || unread < 30 {
		t.Errorf("%d cases, and %d of them unread, test too little", read, unread)
	}

	// The conversions of other engines are not known.
	for ep, body := range map[prompt.Endpoint]string{
		prompt.Messages: `{"model":"m","messages":[{"role":"user","content":"x"}]}`, prompt.Responses: `{"model":"m","input":"x"}`,
	} {
		var p prompt.Prompt
		if err := text.WithRules(prompt.RulesOf("sglang")).Prepare(parse(t, ep, body), &p); err != nil || p.Unread != openai.WhyEngine {
			t.Errorf("%s of SGLang: %v, unread %q", ep, err, p.Unread)
		}
	}
}

// TestHarmony: vLLM makes the prompts of gpt-oss without its template, so that these two APIs are not read.
func TestHarmony(t *testing.T) {
	files := fstest.MapFS{"config.json": {Data: []byte(`{"model_type":"gpt_oss"}`)}}
	for _, name := range []string{"tokenizer.json", "tokenizer_config.json"} {
		data, err := fs.ReadFile(models.Sim(), name)
		if err != nil {
			t.Fatal(err)
		}
		files[name] = &fstest.MapFile{Data: data}
	}
	m, err := prompt.Load(files)
	if err != nil {
		t.Fatal(err)
	}

	var p prompt.Prompt
	for ep, body := range map[prompt.Endpoint]string{
		prompt.Messages: `{"model":"m","messages":[{"role":"user","content":"x"}]}`, prompt.Responses: `{"model":"m","input":"x"}`,
	} {
		if err := m.Prepare(parse(t, ep, body), &p); err != nil || p.Unread != openai.WhyHarmony {
			t.Errorf("%s: %v, unread %q", ep, err, p.Unread)
		}
	}
}

// TestAgentsAreBounded: a request with too many messages, parts or values is refused.
func TestAgentsAreBounded(t *testing.T) {
	list := func(item string, n int) string {
		return "[" + strings.TrimSuffix(strings.Repeat(item+",", n), ",") + "]"
	}
	for _, c := range []struct {
		ep   prompt.Endpoint
		body string
	}{
		{prompt.Messages, `{"model":"m","messages":` + list(`{"role":"user","content":"x"}`, 1<<14+1) + `}`},
		{prompt.Messages, `{"model":"m","messages":[{"role":"user","content":` + list(`{"type":"text","text":"x"}`, 1<<14+1) + `}]}`},
		{prompt.Messages, `{"model":"m","messages":[{"role":"user","content":[{"type":"tool_result","content":` + list(`{"type":"text","text":"x"}`, 1<<14+1) + `}]}]}`},
		{prompt.Messages, `{"model":"m","messages":[],"tools":` + list("1", 1<<17+1) + `}`},
		{prompt.Messages, `{"model":"m","messages":[{"role":"assistant","content":[{"type":"tool_use","id":"1","input":{"a":` + list("1", 1<<17+1) + `}}]}]}`},
		{prompt.Messages, `{"model":"m","messages":` + strings.Repeat("[", 200) + strings.Repeat("]", 200) + `}`},
		{prompt.Responses, `{"model":"m","input":` + list(`{"role":"user","content":"x"}`, 1<<14+1) + `}`},
		{prompt.Responses, `{"model":"m","input":[{"role":"user","content":` + list(`{"type":"input_text","text":"x"}`, 1<<14+1) + `}]}`},
		{prompt.Responses, `{"model":"m","input":"x","tools":` + list("1", 1<<17+1) + `}`},
	} {
		if _, err := openai.Parse(c.ep, []byte(c.body), openai.Limits{}); err == nil {
			t.Errorf("%.80s… was accepted", c.body)
		}
	}
}

// FuzzAgents prepares bodies of the APIs with chats: each ends as tokens, unread, or as an error for its client.
func FuzzAgents(f *testing.F) {
	cases, err := os.ReadFile("testdata/agents.txt")
	if err != nil {
		f.Fatal(err)
	}
	for line := range strings.Lines(string(cases)) {
		if body, ok := strings.CutPrefix(strings.TrimSpace(line), "request: {"); ok {
			f.Add(uint8(0), []byte(`{"model":"m",`+body))
			f.Add(uint8(1), []byte(`{"model":"m",`+body))
		}
	}

	m, err := prompt.Load(models.Sim())
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, api uint8, body []byte) {
		req, err := openai.Parse([]prompt.Endpoint{prompt.Messages, prompt.Responses, prompt.Chat}[api%3], body, openai.Limits{})
		if err != nil {
			return
		}
		var p prompt.Prompt
		err = m.Prepare(req, &p)
		var refusal *prompt.Error
		if err != nil && (!errors.As(err, &refusal) || refusal.Status != 400) {
			t.Fatalf("%T: %v", err, err)
		}
		if err == nil && (len(p.Tokens) == 0) != (p.Unread != openai.WhyRead) {
			t.Errorf("%d tokens, unread %q", len(p.Tokens), p.Unread)
		}
	})
}
