package openai

import (
	"bytes"
	"math"
	"strconv"

	"github.com/stator-project/stator/internal/jsonscan"
)

// prompts reads the prompts of a completion (prompt) or an embedding (input). They are a string, a list of
// strings, a list of token ids, or a list of lists of token ids. Other endpoints skip the key.
func (p *parser) prompts(param string, ep Endpoint) {
	if p.req.Endpoint != ep {
		p.Skip()
		return
	}
	clear(p.req.Prompts) // of an earlier value of a repeated key
	p.req.Prompts = p.req.Prompts[:0]
	p.hasPrompt = false
	p.req.setFact(OddPrompts, false)
	switch k := p.Peek(); k {
	case jsonscan.Null:
		p.ExpectWord("null")
		return
	case jsonscan.String:
		p.req.Prompts = append(p.req.Prompts, Prompt{Text: p.string()})
	case jsonscan.Array:
		p.promptList(param)
	case jsonscan.Object:
		p.oddPrompt()
	case jsonscan.Bad:
	default:
		p.Err = wrongType(param, promptShapes, k)
	}
	p.hasPrompt = true
}

// promptShapes names the accepted forms of a prompt, for errors.
const promptShapes = "a string, an array of strings, an array of token ids or an array of arrays of token ids"

// promptList reads a list of strings, of token ids or of lists of token ids. All elements must be of the kind
// of the first.
func (p *parser) promptList(param string) {
	var first jsonscan.Kind
	p.EachElement(func(i int) {
		k := p.Peek()
		if i == 0 {
			first = k
		}
		switch {
		case p.Err != nil:
		case p.req.Facts&OddPrompts != 0 || k == jsonscan.Object || k != first && k != jsonscan.Bad:
			p.oddPrompt()
		case k == jsonscan.Number && i == 0:
			p.req.Prompts = append(p.req.Prompts, Prompt{Tokens: p.appendToken(param, p.newTokens())})
		case k == jsonscan.Number:
			p.req.Prompts[0].Tokens = p.appendToken(param, p.req.Prompts[0].Tokens)
		case p.countPrompt() > p.lim.Prompts:
			p.failInvalid(param, "holds more than "+strconv.Itoa(p.lim.Prompts)+" prompts")
		case k == jsonscan.String:
			p.req.Prompts = append(p.req.Prompts, Prompt{Text: p.string()})
		case k == jsonscan.Array:
			p.req.Prompts = append(p.req.Prompts, Prompt{Tokens: p.tokenList(param, i)})
		default:
			p.Err = wrongType(param, promptShapes, k)
		}
	})

	if p.Err == nil && len(p.req.Prompts) == 0 && p.req.Facts&OddPrompts == 0 {
		p.Err = Invalid(param, "empty_array", "Invalid '%s': empty array. Send at least one prompt.", param)
	}
}

// oddPrompt skips a prompt of a form that only some engines accept.
func (p *parser) oddPrompt() {
	p.req.setFact(OddPrompts, true)
	p.req.Prompts = p.req.Prompts[:0]
	p.Skip()
}

// countPrompt counts one more prompt and returns the number so far.
func (p *parser) countPrompt() int {
	p.promptCount++
	return p.promptCount
}

// newTokens returns an empty list with room for the token ids up to the next closing bracket, so that it
// need not grow.
func (p *parser) newTokens() []uint32 {
	rest := p.Src[p.At:]
	if end := bytes.IndexByte(rest, ']'); end >= 0 {
		rest = rest[:end]
	}
	return make([]uint32, 0, min(bytes.Count(rest, []byte{','})+1, p.lim.Tokens))
}

// tokenList reads prompt i as a list of token ids.
func (p *parser) tokenList(param string, i int) []uint32 {
	tokens := p.newTokens()
	p.EachElement(func(int) { tokens = p.appendToken(param, tokens) })
	if p.Err == nil && len(tokens) == 0 && p.req.Facts&OddPrompts == 0 {
		p.failInvalid(param+"["+strconv.Itoa(i)+"]", "must hold at least one token id")
	}
	return tokens
}

// appendToken reads one token id. Whether the vocabulary has it is checked later, with the model.
func (p *parser) appendToken(param string, dst []uint32) []uint32 {
	if k := p.Peek(); k != jsonscan.Number {
		p.oddPrompt()
		return dst
	}
	v, _ := p.integer(param)
	p.tokenCount++
	if p.tokenCount > p.lim.Tokens {
		p.failInvalid(param, "holds more than "+strconv.Itoa(p.lim.Tokens)+" token ids")
	}
	if v < 0 || v > math.MaxInt32 {
		p.failInvalid(param, "holds a token id that is not between 0 and 2147483647")
	}
	return append(dst, uint32(v))
}
