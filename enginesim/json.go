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
//
// The first Config.ThinkTokens tokens of a chat's answer are in "reasoning" in place of "content".
//
// With return_token_ids the events of a stream have token_ids, and the first one prompt_token_ids: in a chat beside choices, and in a
// completion in the choice.

// appendNumber appends the members before a number, and the number.
func appendNumber[N int | int64](b []byte, before string, n N) []byte {
	return strconv.AppendInt(append(b, before...), int64(n), 10)
}

// appendText appends the members before a text, and the text as a JSON string.
func appendText(b []byte, before, text string) []byte {
	return openai.AppendString(append(b, before...), text)
}

// appendHead appends the begin of an answer, or of a chunk of one, up to its choices.
func (c *completion) appendHead(b []byte, chunk bool) []byte {
	object := "text_completion"
	if c.req.Endpoint == openai.Chat {
		object = "chat.completion"
		if chunk {
			object = "chat.completion.chunk"
		}
	}

	b = appendText(b, `{"id":`, c.id)
	b = append(b, `,"object":"`...)
	b = append(b, object...)
	b = appendNumber(b, `","created":`, c.created)
	b = appendText(b, `,"model":`, c.req.Model)
	return append(b, `,"choices":[`...)
}

// appendRole appends the first event of a chat, which has the ids of its prompt if the client asked for ids.
func (c *completion) appendRole(b, head []byte, i int) []byte {
	b = append(append(b, "data: "...), head...)
	b = appendNumber(b, `{"index":`, i)
	b = append(b, `,"delta":{"role":"assistant","content":""}`...)
	b = append(appendFinish(b, ""), "}]"...)
	if c.hasIDs() {
		b = openai.AppendNumbers(append(b, `,"prompt_token_ids":`...), c.requests[i].Prompt)
	}
	return append(b, "}\n\n"...)
}

// appendChunk appends the event of the next token of a choice, with the reason if it is the last one.
func (c *completion) appendChunk(b, head []byte, i int, reason string) []byte {
	ch := &c.choices[i]
	text := c.shown(ch, ch.sent)
	b = append(append(b, "data: "...), head...)
	b = appendNumber(b, `{"index":`, i)
	if c.req.Endpoint == openai.Chat {
		member := `,"delta":{"content":`
		if ch.sent < c.thinks {
			member = `,"delta":{"reasoning":`
		}
		b = append(b, member...)
		b = append(openai.AppendString(b, text), '}')
	} else {
		b = appendText(b, `,"text":`, text)
	}

	b = appendFinish(b, reason)
	if c.hasIDs() {
		if ch.sent == 0 && c.req.Endpoint == openai.Completions {
			b = openai.AppendNumbers(append(b, `,"prompt_token_ids":`...), c.requests[i].Prompt)
		}
		token, _ := ch.reads.read(ch.sent)
		b = openai.AppendNumbers(append(b, `,"token_ids":`...), []uint32{token})
	}
	return append(b, "}]}\n\n"...)
}

// hasIDs reports whether the events of the stream have the ids of their tokens.
func (c *completion) hasIDs() bool { return c.req.Facts&openai.TokenIDs != 0 }

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

	b = appendNumber(b, `"usage":{"prompt_tokens":`, prompts)
	b = appendNumber(b, `,"total_tokens":`, prompts+answers)
	b = appendNumber(b, `,"completion_tokens":`, answers)
	b = appendNumber(b, `,"prompt_tokens_details":{"cached_tokens":`, cached)
	return append(b, "}}"...)
}

// appendWhole appends the answer to a request that does not stream.
func (c *completion) appendWhole(b []byte) []byte {
	b = c.appendHead(b, false)
	var text, reasoning []byte
	for i := range c.choices {
		ch := &c.choices[i]
		text, reasoning = text[:0], reasoning[:0]
		emitted, done := ch.progress()
		for t := range emitted {
			if t < c.thinks {
				reasoning = append(reasoning, c.shown(ch, t)...)
				continue
			}
			text = append(text, c.shown(ch, t)...)
		}

		if i > 0 {
			b = append(b, ',')
		}
		b = appendNumber(b, `{"index":`, i)
		if c.req.Endpoint == openai.Chat {
			b = appendText(b, `,"message":{"role":"assistant","content":`, string(text))
			if c.thinks > 0 {
				b = openai.AppendString(append(b, `,"reasoning":`...), string(reasoning))
			}
			b = append(b, `,"refusal":null,"tool_calls":[]}`...)
		} else {
			b = appendText(b, `,"text":`, string(text))
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
