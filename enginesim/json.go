package enginesim

import (
	"strconv"

	"github.com/stator-project/stator/internal/prompt/openai"
)

// Answers are appended by hand, without encoding/json: writing them is most of the work of this process.

// The answers have vLLM's keys in vLLM's order. A chat without streaming:
//
//	{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"sim","choices":[
//	  {"index":0,"message":{"role":"assistant","content":" a b","refusal":null,"tool_calls":[]},
//	   "logprobs":null,"finish_reason":"length","stop_reason":null}],
//	 "usage":{"prompt_tokens":9,"total_tokens":11,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":0}}}
//
// The same as a stream has an event for the role, one for each token, one for the usage if the client asks
// for it, and the end:
//
//	data: {"id":…,"object":"chat.completion.chunk",…,"choices":[{"index":0,"delta":{"role":"assistant","content":""},…}]}
//	data: {…,"choices":[{"index":0,"delta":{"content":" a"},"logprobs":null,"finish_reason":null,"stop_reason":null}]}
//	data: {…,"choices":[{"index":0,"delta":{"content":" b"},"logprobs":null,"finish_reason":"length","stop_reason":null}]}
//	data: {…,"choices":[],"usage":{…}}
//	data: [DONE]

// appendHead appends the begin of an answer, or of a chunk of one, up to its choices.
func (c *completion) appendHead(b []byte, chunk bool) []byte {
	object := "text_completion"
	if c.req.Endpoint == openai.Chat {
		object = "chat.completion"
		if chunk {
			object = "chat.completion.chunk"
		}
	}

	b = append(b, `{"id":`...)
	b = openai.AppendString(b, c.id)
	b = append(b, `,"object":"`...)
	b = append(b, object...)
	b = append(b, `","created":`...)
	b = strconv.AppendInt(b, c.created, 10)
	b = append(b, `,"model":`...)
	b = openai.AppendString(b, c.req.Model)
	return append(b, `,"choices":[`...)
}

// appendChunk appends one event of a stream: the role, or a token, with the reason if it is the last one.
func (c *completion) appendChunk(b, head []byte, i int, role bool, text, reason string) []byte {
	b = append(append(b, "data: "...), head...)
	b = append(b, `{"index":`...)
	b = strconv.AppendInt(b, int64(i), 10)
	switch {
	case role:
		b = append(b, `,"delta":{"role":"assistant","content":""}`...)
	case c.req.Endpoint == openai.Chat:
		b = append(b, `,"delta":{"content":`...)
		b = append(openai.AppendString(b, text), '}')
	default:
		b = append(b, `,"text":`...)
		b = openai.AppendString(b, text)
	}

	b = appendFinish(b, reason)
	return append(b, "}]}\n\n"...)
}

// appendFinish appends the reason for the end, or null.
func appendFinish(b []byte, reason string) []byte {
	b = append(b, `,"logprobs":null,"finish_reason":`...)
	if reason == "" {
		b = append(b, "null"...)
	} else {
		b = openai.AppendString(b, reason)
	}
	return append(b, `,"stop_reason":null`...)
}

// appendUsage appends the counts of tokens.
func (c *completion) appendUsage(b []byte) []byte {
	prompts, answers, cached := c.usage()
	if c.req.Endpoint == openai.Embeddings {
		answers = 0
	}

	b = append(b, `"usage":{"prompt_tokens":`...)
	b = strconv.AppendInt(b, int64(prompts), 10)
	b = append(b, `,"total_tokens":`...)
	b = strconv.AppendInt(b, int64(prompts+answers), 10)
	b = append(b, `,"completion_tokens":`...)
	b = strconv.AppendInt(b, int64(answers), 10)
	b = append(b, `,"prompt_tokens_details":{"cached_tokens":`...)
	b = strconv.AppendInt(b, int64(cached), 10)
	return append(b, "}}"...)
}

// appendWhole appends the answer to a request that does not stream.
func (c *completion) appendWhole(b []byte) []byte {
	b = c.appendHead(b, false)
	var text []byte
	for i := range c.choices {
		ch := &c.choices[i]
		text = text[:0]
		emitted, done := ch.progress()
		for t := range emitted {
			text = append(text, c.shown(ch, t)...)
		}

		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"index":`...)
		b = strconv.AppendInt(b, int64(i), 10)
		if c.req.Endpoint == openai.Chat {
			b = append(b, `,"message":{"role":"assistant","content":`...)
			b = openai.AppendString(b, string(text))
			b = append(b, `,"refusal":null,"tool_calls":[]}`...)
		} else {
			b = append(b, `,"text":`...)
			b = openai.AppendString(b, string(text))
		}
		b = appendFinish(b, finishReasons[done])
		if i == 0 {
			b = append(b, c.first...)
		}
		b = append(b, '}')
	}

	b = append(b, "],"...)
	return append(c.appendUsage(b), '}')
}
