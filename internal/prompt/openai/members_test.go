package openai_test

import (
	"strings"
	"testing"

	"github.com/stator-project/stator/internal/prompt/openai"
)

// TestOptionalMembersOfChats parses the members that few clients send.
func TestOptionalMembersOfChats(t *testing.T) {
	body := `{"model": "m", "tools": [{}], "tool_choice": {"type": "function"}, "documents": [{"text": "d"}], "reasoning_effort": "high",
		"add_generation_prompt": false, "continue_final_message": true, "add_special_tokens": true, "truncate_prompt_tokens": -1,
		"truncation_side": "right", "messages": [
		{"role": "developer", "content": "d", "tools": [{"type": "function"}], "name": "n"},
		{"role": "developer", "content": "d", "tools": 7},
		{"role": "assistant", "content": null, "reasoning": "r", "task": "t", "tool_calls": null},
		{"role": "assistant", "content": "c", "task": 7, "name": null},
		{"role": "tool", "content": "c", "tool_call_id": null, "name": null},
		{"role": "user", "content": [{"type": "refusal", "refusal": "no"}, {"type": "thinking", "thinking": "hm"},
			{"type": "tool_reference", "name": "tool"}, {"type": "text", "text": "x"}, "plain"]}]}`

	r, err := openai.Parse(openai.Chat, []byte(body), openai.Limits{})
	if err != nil {
		t.Fatal(err)
	}

	if string(r.Documents) != `[{"text": "d"}]` || r.ReasoningEffort != "high" || r.AddGenerationPrompt || !r.ContinueFinalMessage {
		t.Errorf("documents %s, effort %s, generation prompt %v, continue %v", r.Documents, r.ReasoningEffort, r.AddGenerationPrompt, r.ContinueFinalMessage)
	}
	if !r.AddSpecialTokens || r.Truncate != -1 || !r.TruncateRight {
		t.Errorf("special tokens %v, truncate %d, right %v", r.AddSpecialTokens, r.Truncate, r.TruncateRight)
	}
	m := r.Messages
	if string(m[0].Tools) != `[{"type": "function"}]` || m[0].Name != "n" || m[1].Tools != nil {
		t.Errorf("developers %+v", m[:2])
	}
	if m[2].Reasoning != "r" || m[2].Task != "t" || m[2].Has&openai.TaskMember == 0 || m[2].ToolCalls != nil || m[3].Has&openai.TaskMember != 0 {
		t.Errorf("assistants %+v", m[2:4])
	}
	if m[3].Has&openai.NullName == 0 || m[3].Has&openai.NullContent != 0 || m[2].Has&openai.NullContent == 0 {
		t.Errorf("null members of assistants %+v", m[2:4])
	}
	if m[4].Has&openai.NullToolCallID == 0 || m[4].Has&openai.NameMember != 0 {
		t.Errorf("tool %+v", m[4])
	}
	if texts := m[5].Parts; len(texts) != 5 || texts[0].Text != "no" || texts[1].Text != "hm" || texts[2].Text != "tool" || texts[4].Text != "plain" {
		t.Errorf("parts %+v", texts)
	}
	if !openai.PartField("text") || openai.PartField("surprise") {
		t.Error("the known members of parts are others")
	}
}

// TestMemberErrors parses bodies with one mistake each. The error names the member at fault.
func TestMemberErrors(t *testing.T) {
	chat := func(message string) string { return `{"model": "m", "messages": [` + message + `]}` }
	user := func(part string) string { return chat(`{"role": "user", "content": [` + part + `]}`) }
	with := func(members string) string {
		return `{"model": "m", "messages": [{"role": "user", "content": "x"}], ` + members + `}`
	}
	few := openai.Limits{Messages: 1, Parts: 1}

	for body, want := range map[string]string{
		chat(`{"role": "assistant", "content": "x", "tool_calls": 7}`):             "messages[0].tool_calls",
		chat(`{"role": "assistant", "content": "x", "tool_calls": [7]}`):           "messages[0].tool_calls[0]",
		chat(`{"role": "user", "content": "x"}, {"role": "user", "content": "x"}`): "holds more than 1 messages",
		user(`{"type": "text", "text": "x"}, {"type": "text", "text": "y"}`):       "holds more than 1 parts",
		user(`7`):                                             "messages[0].content[0]",
		user(`{"type": "refusal"}`):                           ".refusal",
		with(`"chat_template": 7`):                            "chat_template",
		with(`"max_tokens": 1e300`):                           "is too large",
		with(`"stream_options": 7`):                           "stream_options",
		with(`"nvext": {"router": {"allowed_workers": "a"}}`): "an array of strings",
		with(`"stream": true`) + ` x`:                         "unexpected data after the object",
	} {
		_, err := openai.Parse(openai.Chat, []byte(body), few)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\ngot %v, want %q", body, err, want)
		}
	}
}

// TestErrorsAreValidJSON renders an error whose message has every kind of character that JSON escapes.
func TestErrorsAreValidJSON(t *testing.T) {
	e := openai.Invalid("p", "c", "quote \" backslash \\ line\n tab\t bell\a del\x7f é")

	if got, want := string(e.JSON()), `quote \" backslash \\ line\n tab\u0009 bell\u0007 del\u007f é`; !strings.Contains(got, want) {
		t.Errorf("%s has no %s", got, want)
	}
	if e.Error() != e.Message {
		t.Errorf("error %q, message %q", e.Error(), e.Message)
	}
}
