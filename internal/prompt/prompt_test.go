package prompt_test

import (
	"cmp"
	"errors"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	"github.com/stator-project/stator/internal/models"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/prompt/openai"
)

// sim loads the model of the simulator.
// loadSim loads the model once for all tests, as no test changes it.
var loadSim = sync.OnceValues(func() (*prompt.Model, error) { return prompt.Load(models.Sim()) })

func sim(t testing.TB) *prompt.Model {
	t.Helper()
	m, err := loadSim()
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func parse(t testing.TB, ep prompt.Endpoint, body string) *prompt.Request {
	t.Helper()
	req, err := openai.Parse(ep, []byte(body), openai.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	return req
}

// TestPrepareChat checks that the tokens of a chat are the tokens of its rendered text.
func TestPrepareChat(t *testing.T) {
	m := sim(t)
	var p prompt.Prompt
	req := parse(t, prompt.Chat, `{"model":"sim","messages":[{"role":"system","content":"Be brief."},{"role":"user","content":[{"type":"text","text":"Hi"}]},
		{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"now","arguments":"{\"tz\": \"UTC\"}"}}]},
		{"role":"tool","tool_call_id":"1","content":"noon"}],
		"tools":[{"type":"function","function":{"parameters":{"b":1,"a":2},"name":"now"}}]}`)
	if err := m.Prepare(req, &p); err != nil {
		t.Fatal(err)
	}
	want := "<|im_start|>system\nBe brief.\n\n# Tools\n\nYou may call these functions, one JSON object per call between <tool_call> and </tool_call>:\n<tools>\n" +
		`{"type": "function", "function": {"name": "now", "description": null, "parameters": {"b": 1, "a": 2}}}` +
		"\n</tools><|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n\n<tool_call>\n" +
		`{"name": "now", "arguments": {"tz": "UTC"}}` + "\n</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\nnoon\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
	if string(p.Text) != want {
		t.Errorf("rendered\n%s\nwant\n%s", p.Text, want)
	}
	if got := string(m.Tokenizer().AppendDecode(nil, p.Tokens...)); got != want {
		t.Errorf("tokens decode to\n%s", got)
	}
	start, _ := m.Tokenizer().ID("<|im_start|>")
	if p.Tokens[0] != start || p.Total != len(p.Tokens) || p.Prompts != 1 {
		t.Errorf("first token %d, total %d of %d, prompts %d", p.Tokens[0], p.Total, len(p.Tokens), p.Prompts)
	}
}

// TestPreparePrompts checks completion requests with text, with token ids and with several prompts.
func TestPreparePrompts(t *testing.T) {
	m := sim(t)
	var p prompt.Prompt
	for body, want := range map[string][2]int{ // prompts, tokens
		`{"model":"m","prompt":"the the"}`:                            {1, 2},
		`{"model":"m","prompt":["the","the"]}`:                        {2, 2},
		`{"model":"m","prompt":[5,6,7]}`:                              {1, 3},
		`{"model":"m","prompt":[[5,6],[7],[8]]}`:                      {3, 4},
		`{"model":"m","prompt":[5,6,7,8],"truncate_prompt_tokens":3}`: {1, 3},
	} {
		if err := m.Prepare(parse(t, prompt.Completions, body), &p); err != nil || p.Prompts != want[0] || p.Total != want[1] {
			t.Errorf("%s: %d prompts, %d tokens, %v; want %v", body, p.Prompts, p.Total, err, want)
		}
	}
	if err := m.Prepare(parse(t, prompt.Embeddings, `{"model":"m","input":"the the"}`), &p); err != nil || p.Total != 2 || string(p.Text) != "the the" {
		t.Errorf("embedding: %q, %d tokens, %v", p.Text, p.Total, err)
	}
}

// TestContinueFinalMessage checks that the prompt ends with the text of the final message, without the
// special token that would end the message.
func TestContinueFinalMessage(t *testing.T) {
	var p prompt.Prompt
	req := parse(t, prompt.Chat, `{"model":"m","messages":[{"role":"user","content":"a"},{"role":"assistant","content":"The answer "}],
		"continue_final_message":true,"add_generation_prompt":false}`)
	if err := sim(t).Prepare(req, &p); err != nil {
		t.Fatal(err)
	}
	if want := "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nThe answer "; string(p.Text) != want {
		t.Errorf("%q, want %q", p.Text, want)
	}
}

// TestUnpreparableRequests checks the client's error for requests that parse but cannot be prepared.
func TestUnpreparableRequests(t *testing.T) {
	m := sim(t)
	for _, c := range []struct {
		ep                   prompt.Endpoint
		body, param, message string
	}{
		{prompt.Completions, `{"model":"m","prompt":"` + strings.Repeat("the ", 140_000) + `"}`, "input_tokens", "This model's maximum context length is 131072 tokens."},
		{prompt.Completions, `{"model":"m","prompt":"the","max_tokens":131073}`, "max_tokens", "max_tokens=131073 cannot be greater than max_model_len=131072"},
		{prompt.Completions, `{"model":"m","prompt":[9999999]}`, "prompt", "out of vocabulary"},
		{prompt.Completions, `{"model":"m","prompt":""}`, "prompt", "empty"},
		{prompt.Chat, `{"model":"m","messages":[{"role":"user","content":"x"}],"tools":[{}]}`, "tools[0]", "no function"},
		{prompt.Chat, `{"model":"m","messages":[{"role":"user","content":"x"}],"chat_template_kwargs":{"messages":[]}}`, "chat_template_kwargs", "Remove it"},
		{prompt.Chat, `{"model":"m","messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{"}}]}]}`, "messages[0].tool_calls", "a call lacks a member"},
	} {
		var p prompt.Prompt
		err := m.Prepare(parse(t, c.ep, c.body), &p)
		var e *prompt.Error
		if !errors.As(err, &e) || e.Status != 400 || e.Param != c.param || !strings.Contains(e.Message, c.message) {
			t.Errorf("%.60s: %+v, want param %q and message %q", c.body, e, c.param, c.message)
		}
	}
}

// TestLoadErrors checks that the error for an unusable folder names the file and the cause.
func TestLoadErrors(t *testing.T) {
	good, err := models.Sim().Open("tokenizer.json")
	if err != nil {
		t.Fatal(err)
	}
	defer good.Close()
	info, _ := good.Stat()
	vocabulary := make([]byte, info.Size())
	if _, err := good.Read(vocabulary); err != nil {
		t.Fatal(err)
	}
	for message, files := range map[string]map[string]string{
		"tokenizer.json is missing: copy it":                          {},
		"SentencePiece vocabulary (tokenizer.model) is not supported": {"tokenizer.model": "x"},
		"load tokenizer.json: invalid JSON":                           {"tokenizer.json": "{"},
		"model type \"Unigram\" is not supported":                     {"tokenizer.json": `{"model":{"type":"Unigram"}}`},
		"different models":                                            {"tokenizer_config.json": `{"eos_token":"<nope>"}`},
		"vocab_size 10, but tokenizer.json has ids up to 8008":        {"config.json": `{"vocab_size":10}`},
		"read chat_template.jinja: parse template default":            {"chat_template.jinja": "{% if %}"},
		"read config.json":                                            {"config.json": "["},
	} {
		fsys := fstest.MapFS{}
		if _, given := files["tokenizer.json"]; !given && len(files) > 0 && files["tokenizer.model"] == "" {
			fsys["tokenizer.json"] = &fstest.MapFile{Data: vocabulary}
		}
		for name, text := range files {
			fsys[name] = &fstest.MapFile{Data: []byte(text)}
		}
		if _, err := prompt.Load(fsys); err == nil || !strings.Contains(err.Error(), message) {
			t.Errorf("%v, want %q", err, message)
		}
	}
}

// TestMediaOfTextModels checks that media are refused for a model that certainly accepts only text, and
// accepted in doubt.
func TestMediaOfTextModels(t *testing.T) {
	sim := func(name string) []byte {
		raw, err := fs.ReadFile(models.Sim(), name)
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	const body = `{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"What is it?"},{"type":"image_url","image_url":{"url":"data:image/png;base64,AA=="}}]}]}`
	for _, c := range []struct {
		config, file string
		refused      bool
	}{
		{`{"architectures":["LlamaForCausalLM"]}`, "", true},
		{`{"architectures":["LlamaForCausalLM"]}`, "preprocessor_config.json", false},
		{`{"architectures":["QWenForCausalLM"],"visual":{}}`, "", false},
		{`{"architectures":["Gemma3ForConditionalGeneration"]}`, "", false},
		{`{"architectures":["NewForCausalLM"],"text_config":{"vocab_size":9000}}`, "", false},
		{`{}`, "", false},
	} {
		m, err := prompt.Load(fstest.MapFS{
			"tokenizer.json": {Data: sim("tokenizer.json")}, "chat_template.jinja": {Data: sim("chat_template.jinja")},
			"config.json": {Data: []byte(c.config)}, cmp.Or(c.file, "README.md"): {Data: []byte("{}")},
		})
		if err != nil {
			t.Fatal(err)
		}
		var p prompt.Prompt
		err = m.Prepare(parse(t, prompt.Chat, body), &p)
		if refused := err != nil; refused != c.refused || len(p.Media) != 1 {
			t.Errorf("%s, %q: %d media, %v", c.config, c.file, len(p.Media), err)
		}
	}
}

// TestConcurrentPrepare checks that goroutines that share a Model get the same results as one goroutine.
func TestConcurrentPrepare(t *testing.T) {
	m := sim(t)
	const n = 8
	var want [n]prompt.Prompt
	var requests [n]*prompt.Request
	for i := range n {
		requests[i] = parse(t, prompt.Chat, string(conversation(3000, uint64(i))))
		if err := m.Prepare(requests[i], &want[i]); err != nil {
			t.Fatal(err)
		}
	}
	var group sync.WaitGroup
	for i := range n {
		group.Go(func() {
			var p prompt.Prompt
			for k := range 20 {
				which := (i + k) % n
				if err := m.Prepare(requests[which], &p); err != nil || !slices.Equal(p.Tokens, want[which].Tokens) {
					t.Errorf("request %d: %d tokens, want %d (%v)", which, len(p.Tokens), len(want[which].Tokens), err)
				}
			}
		})
	}
	group.Wait()
}
