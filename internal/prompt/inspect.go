package prompt

import (
	"bytes"
	"slices"

	"github.com/stator-project/stator/internal/prompt/chattemplate"
	"github.com/stator-project/stator/internal/prompt/openai"
)

// inspect sets the properties of the model's templates on which vLLM's conversion of Messages depends. vLLM finds them as inspect does,
// by rendering short chats.
func (m *Model) inspect() {
	m.mergesSystem = needsSystemFirst(m.template) || needsSystemFirst(m.withTools)
	m.disabledEffort = m.effortOfDisabledThinking()
}

// inspectSteps bounds each render of inspect.
const inspectSteps = 1 << 20

// needsSystemFirst reports whether a template refuses a system message that is not the first one. vLLM renders without the functions
// that Hugging Face adds, so a template that calls one of them unconditionally counts as refusing, too.
func needsSystemFirst(t *chattemplate.Template) bool {
	if t == nil {
		return true
	}
	messages := make([]chattemplate.Value, 4)
	for i := range messages {
		d := chattemplate.NewDict(2)
		d.Set("role", chattemplate.StringValue([]string{"system", "user"}[i%2]))
		d.Set("content", chattemplate.StringValue("t"))
		messages[i] = chattemplate.DictValue(d)
	}
	vars := chattemplate.NewDict(2)
	vars.Set("messages", chattemplate.ListValue(messages))
	vars.Set("add_generation_prompt", chattemplate.BoolValue(false))

	_, err := t.Render(nil, chattemplate.Context{Vars: vars, Plain: true}, chattemplate.Limits{Steps: inspectSteps})
	return err != nil
}

// effortOfDisabledThinking returns the reasoning effort of a request whose thinking is disabled: none, or low if the template refuses
// none or renders it as an effort with thinking.
func (m *Model) effortOfDisabledThinking() string {
	const none, low = "none", "low"
	without, ok := m.renderEffort(none)
	if !ok {
		return low
	}
	same := func(effort string) bool {
		with, ok := m.renderEffort(effort)
		return ok && bytes.Equal(with, without)
	}
	if slices.ContainsFunc([]string{low, "medium", "high", "xhigh", "max"}, same) {
		return low
	}
	return none
}

// renderEffort renders a short chat with a reasoning effort. It returns false if the template refuses it.
func (m *Model) renderEffort(effort string) (text []byte, ok bool) {
	var p Prompt
	req := Request{Conversation: openai.Conversation{
		Messages:        []openai.Message{{Role: "user", Kind: openai.TextContent, Content: "Hi"}},
		ReasoningEffort: effort, AddGenerationPrompt: true,
	}}
	if m.render(&req, &p) != nil {
		return nil, false
	}
	return p.Text, true
}
