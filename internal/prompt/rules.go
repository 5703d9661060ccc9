package prompt

import (
	"strings"

	"github.com/stator-project/stator/internal/engines"
	"github.com/stator-project/stator/internal/prompt/chattemplate"
	"github.com/stator-project/stator/internal/prompt/openai"
)

// Rules are the engine's rules about which requests are acceptable, beyond what no engine can serve.
type Rules uint8

// The rules.
const (
	// VLLM refuses what vLLM refuses. It is the default, and the simulator's engine has the same rules.
	VLLM Rules = iota
	// AnyEngine refuses only what no engine can serve. What Prepare cannot read sets Prompt.Unread, and so do chats that llama.cpp, SGLang
	// or another engine renders in another way than vLLM.
	AnyEngine
	// SGLang is AnyEngine with further such chats.
	SGLang
)

// RulesOf returns the rules for a kind of engine by its name in the configuration.
func RulesOf(engine string) Rules {
	switch k := engines.Of(engine); {
	case k.VLLMRules:
		return VLLM
	case k == engines.SGLang:
		return SGLang
	}
	return AnyEngine
}

// WithRules returns a copy of m that applies other rules.
func (m *Model) WithRules(rules Rules) *Model {
	with := *m
	with.rules = rules
	return &with
}

// ruleError is the refusal of a request that vLLM refuses because of its form. Other engines may accept that
// form.
type ruleError struct{ refusal *Error }

// Error returns the message of the refusal.
func (e *ruleError) Error() string { return e.refusal.Error() }

// vllmRule marks a refusal as one of vLLM alone.
func vllmRule(refusal *Error) error { return &ruleError{refusal} }

// rendersAsVLLM reports whether all engines with these rules render a chat as vLLM does, apart from its tools: see [Rules.toolOf].
//
//	chat                                   vLLM 0.32                     others
//	-------------------------------------  ----------------------------  ------------------------------------------------
//	the last message is the assistant's    an ended message              llama.cpp continues it, SGLang makes it the user's
//	a billing line in a system message     is left out                   is kept
//	several texts in a message             follow on lines of their own  SGLang puts a space between them
//	a message with one text as a part      a list if the template reads  in SGLang words of the template decide, and a text
//	                                         parts, also of a mere text    that is no part stays one
//	developer messages, names, task        are converted, are kept       SGLang passes the role, and drops users' names
//	reasoning instead of reasoning_content are the same                  SGLang ignores it
//	reasoning_effort                       sets enable_thinking too      SGLang sets it for "none" alone
//	tool_choice "none", or a named tool    all tools are shown           SGLang shows none, or the named one
//	truncation, documents, special tokens  members of vLLM's own         are ignored
//	add_generation_prompt: false           ends the prompt there         SGLang ignores it
func (m *Model) rendersAsVLLM(req *Request) bool {
	if m.rules == VLLM || req.Endpoint != Chat || len(req.Messages) == 0 {
		return true
	}
	sglang := m.rules == SGLang
	switch {
	case req.Messages[len(req.Messages)-1].Role == "assistant", req.Truncate != 0, req.AddSpecialTokens, req.Documents != nil:
		return false
	case !sglang:
	case req.ReasoningEffort != "", !req.AddGenerationPrompt, req.Tools != nil && req.Facts&openai.FewerTools != 0:
		return false
	}

	wantsParts := !m.textOnly || m.template != nil && m.template.WantsParts() || m.withTools != nil && m.withTools.WantsParts()
	for i := range req.Messages {
		message := &req.Messages[i]
		text := message.Content
		if len(message.Parts) > 0 {
			text = message.Parts[0].Text
		}
		if message.Role == "system" && strings.HasPrefix(text, billingPrefix) {
			return false
		}
		if sglang && !isAsInSGLang(message, wantsParts) {
			return false
		}
	}
	return true
}

// isAsInSGLang reports whether SGLang gives a message to templates in the form that it has here. WantsParts means that SGLang may make a
// list of a text that is a part.
func isAsInSGLang(m *openai.Message, wantsParts bool) bool {
	others := openai.NameMember | openai.TaskMember | openai.NullToolCallID
	switch {
	case m.Kind == openai.PartsContent && (len(m.Parts) != 1 || wantsParts), m.Role == "developer", m.Has&others != 0:
		return false
	}
	return m.Has&openai.ReasoningMember == 0 || m.Has&openai.FromReasoningContent != 0
}

// toolOf returns a tool for templates as engines with these rules make it, or false if they differ. Sent is the client's tool, and tool
// what vLLM makes of it: its members in an order, with null for a description or parameters that are not given. llama.cpp has no null
// and drops strict.
func (r Rules) toolOf(sent, tool *chattemplate.Dict) (_ *chattemplate.Dict, ok bool) {
	function, _ := tool.Get("function")
	switch r {
	case VLLM:
		return tool, true
	case SGLang:
		fn, _ := sent.Get("function")
		tool.Set("function", chattemplate.DictValue(inOrderOf(fn.Dict(), function.Dict())))
		deferred, _ := tool.Get("defer_loading")
		if deferred.Kind() != chattemplate.Bool {
			deferred = chattemplate.NoneValue()
		}
		tool.Set("defer_loading", deferred)
		return tool, true
	}

	members := 0
	function.Dict().Each(func(_ string, v chattemplate.Value) {
		if v.Kind() != chattemplate.None {
			members++
		}
	})
	return tool, members == 3 && function.Dict().Len() == 3 && tool.Len() == 2
}

// sglangOrder has SGLang's order of the members of a function that clients have not sent.
var sglangOrder = []string{"description", "name", "parameters", "strict", "defer_loading"}

// sglangCall returns a tool call as SGLang shows it: with an index, which is null unless the client has sent it, and no further members.
func sglangCall(call, function *chattemplate.Dict) *chattemplate.Dict {
	name, _ := function.Get("name")
	arguments, _ := function.Get("arguments")
	short := chattemplate.NewDict(2)
	short.Set("name", name)
	short.Set("arguments", arguments)
	call.Set("function", chattemplate.DictValue(short))

	ordered := chattemplate.NewDict(4)
	for _, member := range []string{"id", "index", "type", "function"} {
		v, ok := call.Get(member)
		if !ok {
			v = chattemplate.NoneValue()
		}
		ordered.Set(member, v)
	}
	return ordered
}

// inOrderOf returns the members of function in the order in which the client sent them, and then further ones.
func inOrderOf(sent, function *chattemplate.Dict) *chattemplate.Dict {
	ordered := chattemplate.NewDict(function.Len())
	add := func(name string) {
		if v, ok := function.Get(name); ok {
			ordered.Set(name, v)
		}
	}
	sent.Each(func(name string, _ chattemplate.Value) { add(name) })
	for _, name := range sglangOrder {
		if _, ok := ordered.Get(name); !ok {
			add(name)
		}
	}
	return ordered
}
