// Package vllm has the rules by which vLLM refuses requests that other engines accept.
//
// Package openai refuses only what no engine can serve. [Check] refuses the rest as vLLM 0.32.0 does, with its
// status and, where clients may depend on them, its messages. Rules that need the model's template or its
// context length are in package prompt.
package vllm

import (
	"strconv"

	"github.com/stator-project/stator/internal/prompt/openai"
)

// Check returns the error of vLLM for a parsed request, or nil.
func Check(req *openai.Request) *openai.Error {
	if err := checkParameters(req); err != nil {
		return err
	}
	if req.Endpoint != openai.Chat {
		return nil // what is wrong with messages of other APIs leaves them unread
	}
	for i := range req.Messages {
		if err := checkMessage(i, &req.Messages[i]); err != nil {
			return err
		}
	}
	return nil
}

// checkParameters checks the fields of the request itself.
func checkParameters(req *openai.Request) *openai.Error {
	has := func(fact openai.Facts) bool { return req.Facts&fact != 0 }
	scoring := req.Endpoint == openai.Completions && has(openai.Echo)
	chat := req.Endpoint.IsChat()

	switch {
	case has(openai.MaxTokensNegative) || has(openai.MaxTokensZero) && !scoring:
		return belowOne("max_tokens")
	case has(openai.MaxCompletionTokensBelowOne):
		return belowOne("max_completion_tokens")
	case has(openai.BadTruncation):
		return openai.Invalid("truncate_prompt_tokens", "invalid_value",
			"Invalid value for 'truncate_prompt_tokens': it must be -1 (as many as the model takes) or at least 1.")
	case chat && has(openai.OwnTemplate):
		return openai.Invalid("chat_template", "unsupported_parameter",
			"'chat_template' is not taken from requests. Remove it: the model's own template is used.")
	case has(openai.OddPrompts):
		field := "prompt"
		if req.Endpoint == openai.Embeddings {
			field = "input"
		}
		return openai.Invalid(field, "invalid_type",
			"Invalid type for '%s': expected a string, an array of strings, an array of token ids "+
				"or an array of arrays of token ids, with all elements like the first element.", field)
	case chat && has(openai.ToolChoice) && req.Tools == nil:
		return openai.Invalid("tool_choice", "invalid_value", "When using `tool_choice`, `tools` must be set.")
	case chat && req.ContinueFinalMessage && req.AddGenerationPrompt:
		return openai.Invalid("continue_final_message", "invalid_value",
			"Cannot set both `continue_final_message` and `add_generation_prompt` to True. Set 'add_generation_prompt' to false.")
	}

	switch req.ReasoningEffort {
	case "", "none", "minimal", "low", "medium", "high", "xhigh", "max":
		return nil
	}
	return openai.Invalid("reasoning_effort", "invalid_value",
		"Invalid value for 'reasoning_effort': it must be none, minimal, low, medium, high, xhigh or max.")
}

// belowOne is the error for a number of tokens below 1.
func belowOne(param string) *openai.Error {
	return openai.Invalid(param, "invalid_value", "Invalid value for '%s': it must be at least 1 and at most 2147483647.", param)
}

// checkMessage refuses a message that vLLM refuses for its role.
func checkMessage(i int, m *openai.Message) *openai.Error {
	path := func(field string) string { return "messages[" + strconv.Itoa(i) + "]" + field }
	switch {
	case m.Has&openai.NullContent != 0 && m.Role != "assistant":
		return openai.Invalid(path(".content"), "invalid_type",
			"Invalid type for 'messages[%d].content': only an assistant's content may be null. Send a string or an array of parts.", i)
	case m.Has&openai.NullName != 0 && m.Role != "tool":
		return openai.Invalid(path(".name"), "invalid_type",
			"Invalid type for 'messages[%d].name': expected a string, but got null instead. Leave it out.", i)
	case m.Has&openai.OwnMembers == 0 && hasOnlyLooseParts(m):
		return openai.Invalid(path(".content"), "invalid_type",
			"Invalid 'messages[%d].content': no part is of a type that a %s message has. Send {\"type\": \"text\", \"text\"}.", i, m.Role)
	}

	for j := range m.Parts {
		switch part := &m.Parts[j]; {
		case part.Type == openai.OtherPart:
			return openai.Invalid("type", "invalid_value",
				"Unsupported chat content part type. Supported types: text, refusal, image_url, input_audio, audio_url, video_url.")
		case part.UUID && (part.Type == openai.TextPart || part.Type == openai.ReferencePart):
			field := path(".content[" + strconv.Itoa(j) + "].uuid")
			return openai.Invalid(field, "invalid_value", "Invalid '%s': only media have a uuid. Remove it.", field)
		}
	}
	return nil
}

// hasOnlyLooseParts reports whether vLLM refuses a message because of its parts. vLLM accepts bare strings,
// input_text and output_text in three cases only: beside parts of the types that chats have, beside other
// members of the message, or for roles that are not its own.
func hasOnlyLooseParts(m *openai.Message) bool {
	switch m.Role {
	case "system", "developer", "user", "assistant", "tool":
	default:
		return false
	}
	own := m.Role == "tool" && m.Has&openai.NameMember != 0 || m.Role != "tool" && m.Has&openai.ToolCallIDMember != 0
	for i := range m.Parts {
		own = own || !m.Parts[i].Loose
	}
	return len(m.Parts) > 0 && !own
}
