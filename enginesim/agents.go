package enginesim

import (
	"github.com/stator-project/stator/internal/prompt/openai"
	"github.com/stator-project/stator/internal/sim/engine"
)

// The answers of Messages and Responses. As in vLLM, the tokens of a message's prompt that were cached are not among its input tokens:
//
//	{"id":"chatcmpl-1","type":"message","role":"assistant","content":[{"type":"text","text":" a b"}],"model":"sim",
//	 "stop_reason":"max_tokens","usage":{"input_tokens":9,"output_tokens":2,"cache_read_input_tokens":0}}
//
//	{"id":"resp_1","created_at":1,"object":"response","model":"sim","status":"incomplete","output":[
//	  {"id":"msg_1","type":"message","role":"assistant","status":"completed",
//	   "content":[{"type":"output_text","text":" a b","annotations":[]}]}],
//	 "usage":{"input_tokens":9,"input_tokens_details":{"cached_tokens":0},"output_tokens":2,"total_tokens":11}}
//
// The first Config.ThinkTokens tokens are a part of their own, before the text:
//
//	{"type":"thinking","thinking":" a","signature":"sim"}
//	{"id":"rs_1","summary":[],"type":"reasoning","content":[{"text":" a","type":"reasoning_text"}],"status":null}
//
// A stream of either has a first event with an empty answer, events for each part, and a last one. The events of a part open it, have
// one token each, and close it. Each event has the member type with its name:
//
//	Messages                Responses
//	----------------------  -----------------------------------
//	message_start           response.created
//	content_block_start     response.output_item.added
//	                        response.content_part.added
//	content_block_delta …   response.output_text.delta … or response.reasoning_text.delta …
//	content_block_stop      response.output_text.done    or response.reasoning_text.done
//	                        response.content_part.done
//	                        response.output_item.done
//	message_delta           response.completed, with the answer
//	message_stop

// isAgents reports whether the request is of one of these two APIs.
func (c *completion) isAgents() bool {
	return c.req.Endpoint == openai.Messages || c.req.Endpoint == openai.Responses
}

// agentPart is a part of an answer: the thinking, or the text after it.
type agentPart struct {
	thinking bool
	text     string
}

// partsOfAgents returns the parts of the only choice so far, and the reason for its end. An answer without a token has an empty text.
func (c *completion) partsOfAgents() (parts []agentPart, done engine.Reason) {
	ch := &c.choices[0]
	emitted, done := ch.progress()
	var text []byte
	for t := range emitted {
		if t > 0 && c.isPartStart(t) {
			parts = append(parts, agentPart{true, string(text)})
			text = text[:0]
		}
		text = append(text, c.shown(ch, t)...)
	}
	return append(parts, agentPart{0 < emitted && emitted <= c.thinks, string(text)}), done
}

// isPartStart reports whether a part begins with a token.
func (c *completion) isPartStart(token int) bool { return token == 0 || token == c.thinks }

// appendAgents appends the whole answer.
func (c *completion) appendAgents(b []byte) []byte {
	parts, done := c.partsOfAgents()
	var list []byte
	for i, p := range parts {
		if i > 0 {
			list = append(list, ',')
		}
		if c.req.Endpoint == openai.Messages {
			list = appendBlock(list, p, true)
		} else {
			list = c.appendItem(list, "completed", p)
		}
	}
	if c.req.Endpoint == openai.Messages {
		return c.appendMessage(b, list, done)
	}
	return c.appendResponse(b, list, done)
}

// appendBlock appends a content block of a message. The block that opens a part of a stream has no signature yet.
func appendBlock(b []byte, p agentPart, signed bool) []byte {
	if !p.thinking {
		return append(appendText(b, `{"type":"text","text":`, p.text), '}')
	}
	b = appendText(b, `{"type":"thinking","thinking":`, p.text)
	if signed {
		b = append(b, `,"signature":"sim"`...)
	}
	return append(b, '}')
}

// appendMessage appends a message with that content.
func (c *completion) appendMessage(b, content []byte, done engine.Reason) []byte {
	b = appendText(b, `{"id":`, c.id)
	b = append(b, `,"type":"message","role":"assistant","content":[`...)
	b = append(append(b, content...), `],"model":`...)
	b = openai.AppendString(b, c.req.Model)
	b = append(append(b, ','), stopReasons[done]...)
	return append(c.appendMessageUsage(append(b, ',')), '}')
}

// stopReasons are the members with the reason for the end of a message, in the words of Anthropic's API. They have no other
// reasons, because the model uses no tools, and stop sequences are ignored.
var stopReasons = [...]string{
	engine.NotDone: `"stop_reason":null`, engine.Length: `"stop_reason":"max_tokens"`, engine.Stop: `"stop_reason":"end_turn"`,
}

// statuses are the statuses of a response. One that is incomplete has reached its max_output_tokens.
var statuses = [...]string{engine.NotDone: "in_progress", engine.Length: "incomplete", engine.Stop: "completed"}

// appendMessageUsage appends the counts of tokens of a message. The counts of a stream's first event are of its first token, because
// vLLM sends that event with it.
func (c *completion) appendMessageUsage(b []byte) []byte {
	prompts, answers, cached := c.usage()
	b = appendNumber(b, `"usage":{"input_tokens":`, prompts-cached)
	b = appendNumber(b, `,"output_tokens":`, answers)
	return append(appendNumber(b, `,"cache_read_input_tokens":`, cached), '}')
}

// appendItem appends an item of a response.
func (c *completion) appendItem(b []byte, status string, p agentPart) []byte {
	b = append(b, `{"id":`...)
	if p.thinking {
		b = openai.AppendString(b, "rs_"+c.id)
		b = append(b, `,"summary":[],"type":"reasoning","content":[`...)
	} else {
		b = openai.AppendString(b, "msg_"+c.id)
		b = append(b, `,"type":"message","role":"assistant","status":"`...)
		b = append(append(b, status...), `","content":[`...)
	}
	if status == "completed" {
		b = appendItemPart(b, p)
	}
	b = append(b, ']')
	if p.thinking {
		b = append(b, `,"status":null`...)
	}
	return append(b, '}')
}

// appendItemPart appends the only part of an item.
func appendItemPart(b []byte, p agentPart) []byte {
	if p.thinking {
		return append(appendText(b, `{"text":`, p.text), `,"type":"reasoning_text"}`...)
	}
	return append(appendText(b, `{"type":"output_text","text":`, p.text), `,"annotations":[]}`...)
}

// appendResponse appends a response with those items. The first event of a stream has one without usage, because no token was
// computed yet.
func (c *completion) appendResponse(b, items []byte, done engine.Reason) []byte {
	b = appendText(b, `{"id":`, c.id)
	b = appendNumber(b, `,"created_at":`, c.created)
	b = appendText(b, `,"object":"response","model":`, c.req.Model)
	b = append(append(b, `,"status":"`...), statuses[done]...)
	b = append(append(b, `","output":[`...), items...)
	b = append(b, ']')
	if done == engine.NotDone {
		return append(b, '}')
	}

	prompts, answers, cached := c.usage()
	b = appendNumber(b, `,"usage":{"input_tokens":`, prompts)
	b = appendNumber(b, `,"input_tokens_details":{"cached_tokens":`, cached)
	b = appendNumber(b, `},"output_tokens":`, answers)
	return append(appendNumber(b, `,"total_tokens":`, prompts+answers), "}}"...)
}

// appendEvent appends the begin of an event, up to the members after its type.
func appendEvent(b []byte, name string) []byte {
	b = append(append(b, "event: "...), name...)
	b = append(append(b, "\ndata: {\"type\":\""...), name...)
	return append(b, '"')
}

// appendAgentsNews appends the events of the tokens that were emitted since the last call, with those that open and close parts.
func (c *completion) appendAgentsNews(b []byte) []byte {
	ch := &c.choices[0]
	n, _ := ch.progress()
	for ; ch.sent < n; ch.sent++ {
		if ch.sent == 0 {
			b = c.appendStart(b)
		}
		thinking := ch.sent < c.thinks
		if c.isPartStart(ch.sent) {
			if ch.sent > 0 {
				b = c.appendPartEnd(b, 0)
			}
			b = c.appendPartStart(b, c.partOf(ch.sent), agentPart{thinking: thinking})
		}
		b = c.appendDelta(b, c.partOf(ch.sent), agentPart{thinking, c.shown(ch, ch.sent)})
	}
	return b
}

// partOf returns the index of the part that has a token.
func (c *completion) partOf(token int) int {
	if c.thinks > 0 && token >= c.thinks {
		return 1
	}
	return 0
}

// appendStart appends the first event of a stream.
func (c *completion) appendStart(b []byte) []byte {
	if c.req.Endpoint == openai.Messages {
		b = append(appendEvent(b, "message_start"), `,"message":`...)
		return append(c.appendMessage(b, nil, engine.NotDone), "}\n\n"...)
	}
	b = append(appendEvent(b, "response.created"), `,"response":`...)
	return append(c.appendResponse(b, nil, engine.NotDone), "}\n\n"...)
}

// appendDelta appends the event of a token of a part.
func (c *completion) appendDelta(b []byte, at int, p agentPart) []byte {
	if c.req.Endpoint == openai.Messages {
		kind := `,"delta":{"type":"text_delta","text":`
		if p.thinking {
			kind = `,"delta":{"type":"thinking_delta","thinking":`
		}
		b = appendNumber(appendEvent(b, "content_block_delta"), `,"index":`, at)
		return append(openai.AppendString(append(b, kind...), p.text), "}}\n\n"...)
	}
	b = appendPlace(appendEvent(b, p.event()+".delta"), at)
	return append(appendText(b, `,"delta":`, p.text), "}\n\n"...)
}

// event returns the beginning of the names of the events of a part of a response.
func (p *agentPart) event() string {
	if p.thinking {
		return "response.reasoning_text"
	}
	return "response.output_text"
}

// appendPlace appends the members with the place of a part of a response: each item has one.
func appendPlace(b []byte, at int) []byte {
	return append(appendNumber(b, `,"output_index":`, at), `,"content_index":0`...)
}

// appendPartStart appends the events before the first token of a part, which is empty.
func (c *completion) appendPartStart(b []byte, at int, p agentPart) []byte {
	if c.req.Endpoint == openai.Messages {
		b = append(appendNumber(appendEvent(b, "content_block_start"), `,"index":`, at), `,"content_block":`...)
		return append(appendBlock(b, p, false), "}\n\n"...)
	}

	b = append(appendNumber(appendEvent(b, "response.output_item.added"), `,"output_index":`, at), `,"item":`...)
	b = append(c.appendItem(b, "in_progress", p), "}\n\n"...)
	b = append(appendPlace(appendEvent(b, "response.content_part.added"), at), `,"part":`...)
	return append(appendItemPart(b, p), "}\n\n"...)
}

// appendPartEnd appends the events after the last token of a part.
func (c *completion) appendPartEnd(b []byte, at int) []byte {
	parts, _ := c.partsOfAgents()
	p := parts[at]
	if c.req.Endpoint == openai.Messages {
		if p.thinking {
			b = appendNumber(appendEvent(b, "content_block_delta"), `,"index":`, at)
			b = append(b, ",\"delta\":{\"type\":\"signature_delta\",\"signature\":\"sim\"}}\n\n"...)
		}
		return append(appendNumber(appendEvent(b, "content_block_stop"), `,"index":`, at), "}\n\n"...)
	}

	b = append(appendPlace(appendEvent(b, p.event()+".done"), at), `,"text":`...)
	b = append(openai.AppendString(b, p.text), "}\n\n"...)
	b = append(appendPlace(appendEvent(b, "response.content_part.done"), at), `,"part":`...)
	b = append(appendItemPart(b, p), "}\n\n"...)
	b = append(appendNumber(appendEvent(b, "response.output_item.done"), `,"output_index":`, at), `,"item":`...)
	return append(c.appendItem(b, "completed", p), "}\n\n"...)
}

// appendClosing appends the events after the last token.
func (c *completion) appendClosing(b []byte) []byte {
	emitted, done := c.choices[0].progress()
	b = c.appendPartEnd(b, c.partOf(emitted-1))
	if c.req.Endpoint == openai.Messages {
		b = append(append(appendEvent(b, "message_delta"), `,"delta":{`...), stopReasons[done]...)
		b = append(c.appendMessageUsage(append(b, "},"...)), "}\n\n"...)
		return append(appendEvent(b, "message_stop"), "}\n\n"...)
	}
	b = append(appendEvent(b, "response.completed"), `,"response":`...)
	return append(c.appendAgents(b), "}\n\n"...)
}
