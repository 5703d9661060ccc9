package main

import (
	"fmt"
	"io/fs"
	"strings"
	"testing/fstest"
	"time"

	"github.com/stator-project/stator/internal/models"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/prompt/openai"
)

// smallTokenizer is a tokenizer.json with three tokens. Cases replace parts of it.
const smallTokenizer = `{"version":"1.0","added_tokens":[],"normalizer":null,"pre_tokenizer":null,"post_processor":null,"decoder":null,` +
	`"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":[["a","b"]]}}`

// vocabularyCases: model folders that are damaged, or that make text grow. A case is accepted if the folder loads and
// prepares a prompt.
func vocabularyCases() []testCase {
	var list []testCase
	add := func(name string, files map[string]string, accepted bool) {
		list = append(list, testCase{name: name, accepted: accepted, cpu: 3 * time.Second, bytes: 384 << 20, call: func() error {
			folder := fstest.MapFS{}
			for path, text := range files {
				folder[path] = &fstest.MapFile{Data: []byte(text)}
			}
			m, err := prompt.Load(folder)
			if err != nil {
				return err
			}
			var p prompt.Prompt
			prompts := []openai.Prompt{{Text: strings.Repeat("ab", 1000)}}
			return m.Prepare(&prompt.Request{Endpoint: prompt.Completions, Prompts: prompts}, &p)
		}})
	}
	tokenizer := func(name, old, replacement string, accepted bool) {
		text := strings.Replace(smallTokenizer, old, replacement, 1)
		add(name, map[string]string{"tokenizer.json": text}, accepted)
	}

	add("a right one", map[string]string{"tokenizer.json": smallTokenizer}, true)
	add("no files", nil, false)
	for _, text := range []string{"", "{", "[]", "null", "1", "\xff", `{"model":null}`, `{"model":{}}`, `{"model":{"type":"Unigram"}}`,
		`{"model":{"type":"BPE"}}`, `{"model":{"type":"BPE","vocab":[],"merges":[]}}`, `{"model":{"type":"BPE","vocab":{},"merges":1}}`,
		strings.Repeat(`{"a":`, 100_000), smallTokenizer[:len(smallTokenizer)-5]} {
		add(fmt.Sprintf("tokenizer.json is %.40q", text), map[string]string{"tokenizer.json": text}, false)
	}

	tokenizer("a negative id", `"b":1`, `"b":-1`, false)
	tokenizer("an id that is a decimal", `"b":1`, `"b":1.5`, false)
	tokenizer("an id above 2^31", `"b":1`, `"b":4294967296`, false)
	tokenizer("an id that is a word", `"b":1`, `"b":"one"`, false)
	tokenizer("a merge of unknown tokens", `["a","b"]`, `["x","y"]`, false)
	tokenizer("a merge whose result is unknown", `["a","b"]`, `["b","a"]`, false)
	tokenizer("a merge of one", `["a","b"]`, `["a"]`, false)
	tokenizer("a merge of three", `["a","b"]`, `["a","b","ab"]`, false)
	tokenizer("a merge that is a number", `["a","b"]`, `5`, false)
	tokenizer("an unknown normalizer", `"normalizer":null`, `"normalizer":{"type":"Magic"}`, false)
	tokenizer("an unknown pre-tokenizer", `"pre_tokenizer":null`, `"pre_tokenizer":{"type":"Magic"}`, false)
	tokenizer("a pattern that is broken", `"pre_tokenizer":null`,
		`"pre_tokenizer":{"type":"Split","pattern":{"Regex":"("},"behavior":"Isolated"}`, false)
	tokenizer("a pattern of 100,000 brackets", `"pre_tokenizer":null`, `"pre_tokenizer":{"type":"Split","pattern":{"Regex":"`+
		strings.Repeat("(", 100_000)+`"},"behavior":"Isolated"}`, false)
	tokenizer("an added token without text", `"added_tokens":[]`, `"added_tokens":[{"id":3,"content":""}]`, true)
	tokenizer("an added token with a negative id", `"added_tokens":[]`, `"added_tokens":[{"id":-3,"content":"x"}]`, false)

	growing := `{"type":"Replace","pattern":{"String":"a"},"content":"aaaaaaaaaa"}`
	tokenizer("text that grows tenfold twelve times", `"normalizer":null`,
		`"normalizer":{"type":"Sequence","normalizers":[`+strings.TrimSuffix(strings.Repeat(growing+",", 12), ",")+`]}`, false)

	config := func(name, text string, accepted bool) {
		add(name, map[string]string{"tokenizer.json": smallTokenizer, "config.json": text}, accepted)
	}
	config("config.json is broken", "{", false)
	config("a negative context, which counts as none", `{"max_position_embeddings":-1}`, true)
	config("a context that is a word", `{"max_position_embeddings":"long"}`, false)
	config("a context of 10 tokens", `{"max_position_embeddings":10}`, false)

	whole := readSim()
	for _, cut := range []int{1, 10, 1000, len(whole) / 2, len(whole) - 3} {
		add(fmt.Sprintf("the first %d bytes of a vocabulary", cut), map[string]string{"tokenizer.json": whole[:cut]}, false)
	}
	return list
}

// readSim returns the vocabulary that comes with the program.
func readSim() string {
	text, err := fs.ReadFile(models.Sim(), "tokenizer.json")
	if err != nil {
		panic(err) // the folder is embedded
	}
	return string(text)
}
