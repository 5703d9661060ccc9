package enginesim

import (
	"strconv"

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
// A stream of either has a first event with an empty answer, events that open its only part, one for each token, events that close the
// part, and a last one. Each has the member type with its name:
//
//	Messages                Responses
//	----------------------  -----------------------------------
//	message_start           response.created
//	content_block_start     response.output_item.added
//	                        response.content_part.added
//	content_block_delta …   response.output_text.delta …
//	content_block_stop      response.output_text.done
//	                        response.content_part.done
//	                        response.output_item.done
//	message_delta           response.completed, with the answer
//	message_stop

// isAgents reports whether the request is of one of these two APIs.
func (c *completion) isAgents() bool {
	return c.req.Endpoint == openai.Messages || c.req.Endpoint == openai.Responses
}

// appendAgents appends the whole answer.
func (c *completion) appendAgents(b []byte) []byte {
	text, done := c.textOfAgents()
	if c.req.Endpoint == openai.Messages {
		return c.appendMessage(b, appendTextPart(nil, text), done)
	}
	return c.appendResponse(b, c.appendItem(nil, "completed", text), done)
}

// textOfAgents returns the text of the only choice so far, and the reason for its end.
func (c *completion) textOfAgents() (string, engine.Reason) {
	ch := &c.choices[0]
	emitted, done := ch.progress()
	var text []byte
	for t := range emitted {
		text = append(text, c.shown(ch, t)...)
	}
	return string(text), done
}

// appendTextPart appends a content block of a message.
func appendTextPart(b []byte, text string) []byte {
	b = append(b, `{"type":"text","text":`...)
	return append(openai.AppendString(b, text), '}')
}

// appendMessage appends a message with that content.
func (c *completion) appendMessage(b, content []byte, done engine.Reason) []byte {
	b = append(b, `{"id":`...)
	b = openai.AppendString(b, c.id)
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
	b = append(b, `"usage":{"input_tokens":`...)
	b = strconv.AppendInt(b, int64(prompts-cached), 10)
	b = append(b, `,"output_tokens":`...)
	b = strconv.AppendInt(b, int64(answers), 10)
	b = append(b, `,"cache_read_input_tokens":`...)
	return append(strconv.AppendInt(b, int64(cached), 10), '}')
}

// appendItem appends the only item of a response.
func (c *completion) appendItem(b []byte, status, text string) []byte {
	b = append(b, `{"id":`...)
	b = openai.AppendString(b, "msg_"+c.id)
	b = append(b, `,"type":"message","role":"assistant","status":"`...)
	b = append(append(b, status...), `","content":[`...)
	if status == "completed" {
		b = appendOutputText(b, text)
	}
	return append(b, "]}"...)
}

// appendOutputText appends the part of a response's item.
func appendOutputText(b []byte, text string) []byte {
	b = append(b, `{"type":"output_text","text":`...)
	return append(openai.AppendString(b, text), `,"annotations":[]}`...)
}

// appendResponse appends a response with those items. The first event of a stream has one without usage, because no token was
// computed yet.
func (c *completion) appendResponse(b, items []byte, done engine.Reason) []byte {
	b = append(b, `{"id":`...)
	b = openai.AppendString(b, c.id)
	b = append(b, `,"created_at":`...)
	b = strconv.AppendInt(b, c.created, 10)
	b = append(b, `,"object":"response","model":`...)
	b = openai.AppendString(b, c.req.Model)
	b = append(append(b, `,"status":"`...), statuses[done]...)
	b = append(append(b, `","output":[`...), items...)
	b = append(b, ']')
	if done == engine.NotDone {
		return append(b, '}')
	}

	prompts, answers, cached := c.usage()
	b = append(b, `,"usage":{"input_tokens":`...)
	b = strconv.AppendInt(b, int64(prompts), 10)
	b = append(b, `,"input_tokens_details":{"cached_tokens":`...)
	b = strconv.AppendInt(b, int64(cached), 10)
	b = append(b, `},"output_tokens":`...)
	b = strconv.AppendInt(b, int64(answers), 10)
	b = append(b, `,"total_tokens":`...)
	return append(strconv.AppendInt(b, int64(prompts+answers), 10), "}}"...)
}

// appendEvent appends the begin of an event, up to the members after its type.
func appendEvent(b []byte, name string) []byte {
	b = append(append(b, "event: "...), name...)
	b = append(append(b, "\ndata: {\"type\":\""...), name...)
	return append(b, '"')
}

// appendAgentsNews appends the events of the tokens that were emitted since the last call, after the events that open the answer.
func (c *completion) appendAgentsNews(b []byte) []byte {
	ch := &c.choices[0]
	n, _ := ch.progress()
	if ch.sent == 0 && n > 0 {
		b = c.appendOpening(b)
	}
	for ; ch.sent < n; ch.sent++ {
		if c.req.Endpoint == openai.Messages {
			b = append(appendEvent(b, "content_block_delta"), `,"index":0,"delta":{"type":"text_delta","text":`...)
			b = append(openai.AppendString(b, c.shown(ch, ch.sent)), "}}\n\n"...)
			continue
		}
		b = append(appendEvent(b, "response.output_text.delta"), `,"output_index":0,"content_index":0,"delta":`...)
		b = append(openai.AppendString(b, c.shown(ch, ch.sent)), "}\n\n"...)
	}
	return b
}

// appendOpening appends the events before the first token.
func (c *completion) appendOpening(b []byte) []byte {
	if c.req.Endpoint == openai.Messages {
		b = append(appendEvent(b, "message_start"), `,"message":`...)
		b = append(c.appendMessage(b, nil, engine.NotDone), "}\n\n"...)
		b = append(appendEvent(b, "content_block_start"), `,"index":0,"content_block":`...)
		return append(appendTextPart(b, ""), "}\n\n"...)
	}

	b = append(appendEvent(b, "response.created"), `,"response":`...)
	b = append(c.appendResponse(b, nil, engine.NotDone), "}\n\n"...)
	b = append(appendEvent(b, "response.output_item.added"), `,"output_index":0,"item":`...)
	b = append(c.appendItem(b, "in_progress", ""), "}\n\n"...)
	b = append(appendEvent(b, "response.content_part.added"), `,"output_index":0,"content_index":0,"part":`...)
	return append(appendOutputText(b, ""), "}\n\n"...)
}

// appendClosing appends the events after the last token.
func (c *completion) appendClosing(b []byte) []byte {
	text, done := c.textOfAgents()
	if c.req.Endpoint == openai.Messages {
		b = append(appendEvent(b, "content_block_stop"), ",\"index\":0}\n\n"...)
		b = append(append(appendEvent(b, "message_delta"), `,"delta":{`...), stopReasons[done]...)
		b = append(c.appendMessageUsage(append(b, "},"...)), "}\n\n"...)
		return append(appendEvent(b, "message_stop"), "}\n\n"...)
	}

	b = append(appendEvent(b, "response.output_text.done"), `,"output_index":0,"content_index":0,"text":`...)
	b = append(openai.AppendString(b, text), "}\n\n"...)
	b = append(appendEvent(b, "response.content_part.done"), `,"output_index":0,"content_index":0,"part":`...)
	b = append(appendOutputText(b, text), "}\n\n"...)
	b = append(appendEvent(b, "response.output_item.done"), `,"output_index":0,"item":`...)
	b = append(c.appendItem(b, "completed", text), "}\n\n"...)
	b = append(appendEvent(b, "response.completed"), `,"response":`...)
	return append(c.appendAgents(b), "}\n\n"...)
}
