package prompt

import (
	"fmt"
	"io"

	"github.com/stator-project/stator/internal/prompt/chattemplate"
	"github.com/stator-project/stator/internal/prompt/tokenizer"
)

// chatML is the template that llama.cpp uses for a file without a chat template.
const chatML = `{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{% endfor %}` +
	`{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}`

// LoadGGUF reads the vocabulary, the chat template and the context length of a .gguf file of size bytes, by
// llama.cpp's rules: a file without a template uses ChatML. The context length is the training's; a server
// may have been started with a shorter one.
func LoadGGUF(r io.ReaderAt, size int64) (*Model, error) {
	g, err := tokenizer.LoadGGUF(r, size)
	if err != nil {
		return nil, err
	}

	m := &Model{tokenizer: g.Tokenizer, context: g.ContextLength, vocabulary: g.Tokenizer.VocabSize(), surroundChat: true}
	m.before, m.after = g.Tokenizer.Before(), g.Tokenizer.After()

	for _, name := range []string{"bos_token", "eos_token", "unk_token", "pad_token"} {
		if text, ok := g.Tokens[name]; ok {
			m.tokens = append(m.tokens, namedToken{name, text})
		}
	}

	if g.ChatTemplate == "" {
		g.ChatTemplate = chatML
	}

	m.template, err = chattemplate.Parse(g.ChatTemplate)
	if err != nil {
		return nil, fmt.Errorf("load GGUF: parse tokenizer.chat_template: %w", err)
	}

	m.withTools = m.template
	m.inspect()
	return m, nil
}
