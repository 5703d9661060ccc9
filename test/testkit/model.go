package testkit

import (
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/prompt/openai"
)

// ByteModel is a model for simulated engines: the bytes of a prompt's text are its tokens, and an answer
// consists of the letters a to z.
type ByteModel struct{}

// ContextLength returns 4,096 tokens.
func (ByteModel) ContextLength() int { return 4096 }

// VocabSize returns the number of bytes, 256.
func (ByteModel) VocabSize() int { return 256 }

// AppendDecode appends a letter for each id.
func (ByteModel) AppendDecode(dst []byte, ids ...uint32) []byte {
	for _, id := range ids {
		dst = append(dst, 'a'+byte(id%26))
	}
	return dst
}

// Prepare sets the tokens of dst to the bytes of the first prompt of req.
func (ByteModel) Prepare(req *openai.Request, dst *prompt.Prompt) error {
	dst.Tokens = dst.Tokens[:0]
	for _, c := range []byte(req.Prompts[0].Text) {
		dst.Tokens = append(dst.Tokens, uint32(c))
	}
	return nil
}
