package speculate

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/prompt/openai"
)

// chunk is an event of a stream with a delta and the rest of its choice.
func chunk(delta, rest string) string {
	return `data: {"id":"a","object":"chat.completion.chunk","choices":[{"index":0,"delta":{` + delta + `},"logprobs":null` + rest + "}]}\n\n"
}

// event is an event of Messages or Responses with its further members.
func event(name, members string) string {
	return "event: " + name + "\ndata: {\"type\":\"" + name + "\"," + members + "}\n\n"
}

const (
	ends  = `,"finish_reason":"stop"`
	usage = `data: {"id":"a","choices":[],"usage":{"prompt_tokens":1}}` + "\n\ndata: [DONE]\n\n"
)

// spokenBlock is the events of a block of a message.
func spokenBlock(index int, block string, deltas ...string) string {
	b := event("content_block_start", fmt.Sprintf(`"index":%d,"content_block":{%s}`, index, block))
	for _, d := range deltas {
		b += event("content_block_delta", fmt.Sprintf(`"index":%d,"delta":{%s}`, index, d))
	}
	return b + event("content_block_stop", fmt.Sprintf(`"index":%d`, index))
}

// stopped is the last events of a message.
func stopped(reason string) string {
	return event("message_delta", `"delta":{"stop_reason":"`+reason+`"},"usage":{"output_tokens":2}`) +
		"event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"
}

// The parts of an answer by each API: thinking, a text, and two calls of tools.
const (
	chatCalls = `[{"id":"c1","type":"function","function":{"name":"f","arguments":"{\"a\": 1}"}},` +
		`{"id":"c2","type":"function","function":{"name":"g","arguments":"{}"}}]`
	messageBlocks = `{"type":"thinking","thinking":"I think","signature":"x"},{"type":"text","text":"a \"b\""},` +
		`{"type":"tool_use","id":"c1","name":"f","input":{"a": 1}},{"type":"tool_use","id":"c2","name":"g","input":{}}`
	responseItems = `{"id":"rs_1","summary":[],"type":"reasoning","content":[{"text":"I think","type":"reasoning_text"}],` +
		`"encrypted_content":null,"status":null},` +
		`{"id":"msg_1","type":"message","role":"assistant","status":"completed",` +
		`"content":[{"type":"output_text","text":"a \"b\"","annotations":[],"logprobs":null}]},` +
		`{"type":"function_call","id":"fc_1","call_id":"c1","name":"f","arguments":"{\"a\": 1}","status":"completed"},` +
		`{"type":"function_call","id":"fc_2","call_id":"c2","name":"g","arguments":"{}","status":"completed"}`
	created = `"response":{"id":"r","object":"response","status":"in_progress","output":[],"error":null}`
)

// summary returns messages as a text.
func summary(list []openai.Message) string {
	var lines []string
	for i := range list {
		m := &list[i]
		line := m.Role + " " + m.ToolCallID + fmt.Sprintf("%q", m.Content)
		if m.Has&openai.ReasoningMember != 0 {
			line += " thinks " + m.Reasoning
		}
		line += string(m.ToolCalls)
		for _, c := range m.Calls {
			line += " " + c.ID + " " + c.Name + c.Arguments
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "; ")
}

// TestAnswers reads answers in pieces of several sizes. Those that are not whole, or not understood, are not used.
func TestAnswers(t *testing.T) {
	const agents = `assistant "a \"b\"" thinks I think c1 f{"a": 1} c2 g{}; tool c1"x"`
	message := func(blocks, reason string) string {
		return `{"id":"m","type":"message","role":"assistant","content":[` + blocks + `],"stop_reason":` + reason + `,"usage":{"input_tokens":1}}`
	}
	response := func(items, status string) string {
		return `{"id":"r","object":"response","error":null,"output":[` + items + `],"status":"` + status + `","usage":{}}`
	}
	for _, c := range []struct {
		name, body string
		endpoint   prompt.Endpoint
		stream, ok bool
		want       string // the messages of the next turn, with thinking
	}{
		{"a stream", ": ping\n\nevent: x\n" + chunk(`"role":"assistant","content":""`, "") + chunk(`"reasoning":"I th"`, "") +
			chunk(`"reasoning":"ink"`, `,"finish_reason":null`) + chunk(`"content":"a \"b\"\u00e9"`, "") + chunk(`"content":"c"`, ends) + usage,
			prompt.Chat, true, true, `assistant "a \"b\"éc" thinks I think; user "x"`},
		{"both names of thinking", chunk(`"reasoning":"x","reasoning_content":"x"`, "") + chunk(`"content":"c"`, ends),
			prompt.Chat, true, true, `assistant "c" thinks x; user "x"`},
		{"the older name", chunk(`"reasoning_content":"x"`, "") + chunk(`"content":"c"`, `,"finish_reason":"length"`),
			prompt.Chat, true, true, `assistant "c" thinks x; user "x"`},
		{"calls", chunk(`"content":null,"tool_calls":[{"index":0,"id":"c1","type":"function","function":{"name":"f","arguments":""}}]`, "") +
			chunk(`"tool_calls":[{"index":0,"function":{"arguments":"{\"a\": 1}"}}]`, "") +
			chunk(`"tool_calls":[{"index":1,"id":"c2","type":"function","function":{"name":"g","arguments":"{}"}}]`, "") +
			chunk(``, `,"finish_reason":"tool_calls"`), prompt.Chat, true, true, `assistant ""` + chatCalls + `; tool c1"x"`},
		{"a whole answer", `{"id":"a","choices":[{"index":0,"message":{"role":"assistant","content":null,"tool_calls":` + chatCalls +
			`,"reasoning":"r"},"finish_reason":"tool_calls"}],"usage":{}}`, prompt.Chat, false, true,
			`assistant "" thinks r` + chatCalls + `; tool c1"x"`},
		{"without an end", chunk(`"content":"c"`, ""), prompt.Chat, true, false, ""},
		{"aborted", chunk(`"content":"c"`, `,"finish_reason":"abort"`), prompt.Chat, true, false, ""},
		{"an error", chunk(`"content":"c"`, "") + `data: {"error":{"code":"stream_broken"}}` + "\n\n", prompt.Chat, true, false, ""},
		{"an error after the end", chunk(`"content":"c"`, ends) + `data: {"error":{"code":"x"}}` + "\n\n", prompt.Chat, true, false, ""},
		{"two choices", `{"choices":[{"index":0,"message":{"content":"a"},"finish_reason":"stop"},{"index":1}]}`, prompt.Chat, false, false, ""},
		{"another choice", strings.Replace(chunk(`"content":"c"`, ends), `"index":0`, `"index":1`, 1), prompt.Chat, true, false, ""},
		{"a part of a JSON text", `{"choices":[{"index":0,"message":{"content":"a"},"finish_reason":"stop"}`, prompt.Chat, false, false, ""},
		{"calls out of order", chunk(`"tool_calls":[{"index":4,"id":"c"}]`, ends), prompt.Chat, true, false, ""},
		{"a call of another type", chunk(`"tool_calls":[{"index":0,"type":"custom"}]`, ends), prompt.Chat, true, false, ""},
		{"no JSON", "data: x\n\n", prompt.Chat, true, false, ""},
		{"a list", "[]", prompt.Chat, false, false, ""},
		{"nothing", "", prompt.Chat, false, false, ""},

		{"a message", message(messageBlocks, `"tool_use"`), prompt.Messages, false, true, agents},
		{"a stream of a message", event("message_start", `"message":`+message("", "null")) + event("ping", `"x":1`) +
			spokenBlock(0, `"type":"thinking","thinking":""`, `"type":"thinking_delta","thinking":"I th"`,
				`"type":"thinking_delta","thinking":"ink"`, `"type":"signature_delta","signature":"x"`) +
			spokenBlock(1, `"type":"text","text":""`, `"type":"text_delta","text":"a \"b"`, `"type":"text_delta","text":"\""`) +
			spokenBlock(2, `"type":"tool_use","id":"c1","name":"f","input":{}`, `"type":"input_json_delta","partial_json":"{\"a\""`,
				`"type":"input_json_delta","partial_json":": 1}"`) +
			spokenBlock(3, `"type":"tool_use","id":"c2","name":"g","input":{}`) + stopped("tool_use"), prompt.Messages, true, true, agents},
		{"a message that has met its bound", spokenBlock(0, `"type":"text","text":""`, `"type":"text_delta","text":"a"`) + stopped("max_tokens"),
			prompt.Messages, true, true, `assistant "a"; user "x"`},
		{"a message without an end", spokenBlock(0, `"type":"text","text":"a"`), prompt.Messages, true, false, ""},
		{"a message that was refused", message(`{"type":"text","text":"a"}`, `"refusal"`), prompt.Messages, false, false, ""},
		{"an error in a message", spokenBlock(0, `"type":"text","text":"a"`) + event("error", `"error":{"type":"api_error"}`) +
			stopped("end_turn"), prompt.Messages, true, false, ""},
		{"a block of another type", message(`{"type":"server_tool_use","id":"c"}`, `"end_turn"`), prompt.Messages, false, false, ""},
		{"blocks out of order", spokenBlock(1, `"type":"text","text":"a"`) + stopped("end_turn"), prompt.Messages, true, false, ""},
		{"a delta without its block", event("content_block_delta", `"index":0,"delta":{"type":"text_delta","text":"a"}`) + stopped("end_turn"),
			prompt.Messages, true, false, ""},
		{"too many blocks", message(strings.Repeat(`{"type":"text","text":"a"},`, maxParts)+`{"type":"text"}`, `"end_turn"`),
			prompt.Messages, false, false, ""},

		{"a response", response(responseItems, "completed"), prompt.Responses, false, true, agents},
		{"a stream of a response", event("response.created", created) + event("response.output_item.done", `"item":{"status":"completed"}`) +
			event("response.completed", `"response":`+response(responseItems, "completed")), prompt.Responses, true, true, agents},
		{"a response that has met its bound", response(responseItems, "incomplete"), prompt.Responses, false, true, agents},
		{"a response with a custom call", response(`{"type":"custom_tool_call","call_id":"c1","name":"f","input":"i"}`, "completed"),
			prompt.Responses, false, true, `assistant "" c1 f{"input":"i"}; tool c1"x"`},
		{"a response without an end", event("response.created", created), prompt.Responses, true, false, ""},
		{"a response that has failed", response(responseItems, "failed"), prompt.Responses, false, false, ""},
		{"an error in a response", event("response.created", created) + event("error", `"message":"x"`), prompt.Responses, true, false, ""},
	} {
		for _, size := range []int{1, 7, 1 << 16} {
			a := newAnswer(c.endpoint, c.stream)
			for rest := c.body; rest != ""; {
				n := min(size, len(rest))
				a.write([]byte(rest[:n]))
				rest = rest[n:]
			}
			if ok := a.end(); ok != c.ok {
				t.Errorf("%s in pieces of %d: used %v, want %v", c.name, size, ok, c.ok)
			}
			if !c.ok {
				continue
			}
			req := &prompt.Request{Endpoint: c.endpoint, Model: "m"}
			turn, err := a.turn(req, openai.ReasoningMember, "x")
			if err != nil || summary(turn) != c.want {
				t.Errorf("%s in pieces of %d: %v, %s, want %s", c.name, size, err, summary(turn), c.want)
			}
			if turn, err := a.turn(req, 0, "x"); err != nil || strings.Contains(summary(turn), "thinks") {
				t.Errorf("%s: %v, thinking is sent back by a client that does not: %s", c.name, err, summary(turn))
			}
		}
	}
}

// TestAnswersThatNoClientSendsBack: an answer that a client cannot send back, or whose conversion is not known, has no next turn.
func TestAnswersThatNoClientSendsBack(t *testing.T) {
	for name, c := range map[string]struct {
		endpoint prompt.Endpoint
		body     string
	}{
		"arguments that were cut off": {prompt.Messages, spokenBlock(0, `"type":"tool_use","id":"c","name":"f","input":{}`,
			`"type":"input_json_delta","partial_json":"{\"a\": "`) + stopped("max_tokens")},
		"arguments that end the list": {prompt.Messages, spokenBlock(0, `"type":"tool_use","id":"c","name":"f","input":{}`,
			`"type":"input_json_delta","partial_json":"{}}],\"x\":[{\"y\":{}"`) + stopped("tool_use")},
		"an item of another type":   {prompt.Responses, event("response.completed", `"response":{"status":"completed","output":[{"type":"x"}]}`)},
		"an item that is no object": {prompt.Responses, event("response.completed", `"response":{"status":"completed","output":[1]}`)},
		"no item":                   {prompt.Responses, event("response.completed", `"response":{"status":"completed","output":[]}`)},
	} {
		a := newAnswer(c.endpoint, true)
		a.write([]byte(c.body))
		if !a.end() {
			t.Errorf("%s: the answer is not read", name)
		}
		if turn, err := a.turn(&prompt.Request{Endpoint: c.endpoint, Model: "m"}, 0, "x"); err == nil {
			t.Errorf("%s: %s", name, summary(turn))
		}
	}
}

// TestAnswersAreBounded: a line, a JSON text and all texts together have a bound.
func TestAnswersAreBounded(t *testing.T) {
	long := newAnswer(prompt.Responses, true)
	long.write([]byte("data: " + strings.Repeat("x", MaxAnswer)))
	whole := newAnswer(prompt.Chat, false)
	whole.write(make([]byte, MaxAnswer))
	whole.write([]byte("x"))
	many := newAnswer(prompt.Chat, true)
	one := chunk(`"content":"`+strings.Repeat("x", 32<<10)+`"`, "")
	blocks := newAnswer(prompt.Messages, true)
	blocks.write([]byte(spokenBlock(0, `"type":"text","text":""`)))
	delta := event("content_block_delta", `"index":0,"delta":{"type":"text_delta","text":"`+strings.Repeat("x", 32<<10)+`"}`)
	for range MaxAnswer/(32<<10) + 2 {
		many.write([]byte(one))
		blocks.write([]byte(delta))
	}
	for name, a := range map[string]*answer{"a line": &long, "a JSON text": &whole, "all texts": &many, "the texts of a message": &blocks} {
		if a.end() || !a.large || len(a.held) > MaxAnswer || a.size > MaxAnswer+32<<10 {
			t.Errorf("%s: large %v, %d bytes are held, %d of texts", name, a.large, len(a.held), a.size)
		}
	}
}

// FuzzAnswer reads any bytes of each API, in two pieces.
func FuzzAnswer(f *testing.F) {
	f.Add([]byte(chunk(`"content":"c"`, ends)), 5, true, uint8(prompt.Chat))
	f.Add([]byte(`{"choices":[{"index":0,"message":{"content":"a"},"finish_reason":"stop"}]}`), 9, false, uint8(prompt.Chat))
	use := spokenBlock(0, `"type":"tool_use","id":"c","input":{}`, `"partial_json":"{}"`)
	f.Add([]byte(use+stopped("tool_use")), 40, true, uint8(prompt.Messages))
	f.Add([]byte(`{"content":[`+messageBlocks+`],"stop_reason":"tool_use"}`), 70, false, uint8(prompt.Messages))
	last := event("response.completed", `"response":{"status":"completed","output":[`+responseItems+`]}`)
	f.Add([]byte(last), 30, true, uint8(prompt.Responses))
	f.Fuzz(func(t *testing.T, body []byte, at int, stream bool, endpoint uint8) {
		at = min(max(at, 0), len(body))
		one, two := newAnswer(prompt.Endpoint(endpoint), stream), newAnswer(prompt.Endpoint(endpoint), stream)
		one.write(body)
		two.write(body[:at])
		two.write(body[at:])
		ok, same := one.end(), two.end()
		if ok != same {
			t.Fatalf("in one piece %v, in two %v", ok, same)
		}
		req := &prompt.Request{Endpoint: prompt.Endpoint(endpoint), Model: "m"}
		first, err := one.turn(req, openai.ReasoningMember, "x")
		second, errTwo := two.turn(req, openai.ReasoningMember, "x")
		if ok && ((err == nil) != (errTwo == nil) || summary(first) != summary(second)) {
			t.Errorf("in one piece %v %s, in two %v %s", err, summary(first), errTwo, summary(second))
		}
	})
}
