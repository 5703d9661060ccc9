package prompt

import (
	"errors"
	"strconv"
	"unsafe"

	"github.com/stator-project/stator/internal/prompt/chattemplate"
	"github.com/stator-project/stator/internal/prompt/openai"
)

// toolCallsValue returns the tool calls of message i for templates. Clients send arguments as JSON text,
// but templates need dicts. Arguments that are not a JSON object become an empty dict: a model wrote them,
// and its mistake must not make the conversation unusable. The values of arguments are deducted from *most.
func toolCallsValue(raw []byte, i int, rules Rules, most *int) (chattemplate.Value, error) {
	param := "messages[" + strconv.Itoa(i) + "].tool_calls"
	calls, err := decodeJSON(param, raw)
	if err != nil {
		return calls, err
	}

	items := calls.Items()
	for k, c := range items {
		fn, _ := c.Dict().Get("function")
		if !isString(c.Dict(), "id") || !isString(c.Dict(), "type") || fn.Kind() != chattemplate.DictKind ||
			!isString(fn.Dict(), "name") || !isString(fn.Dict(), "arguments") {
			return calls, vllmRule(openai.Invalid(param, "invalid_type", "Invalid '%s': a call lacks a member, or one has the wrong type. "+
				"Send {\"id\", \"type\": \"function\", \"function\": {\"name\", \"arguments\"}}, the arguments as a string.", param))
		}
		if kind, _ := c.Dict().Get("type"); kind.Text() != "function" {
			return calls, vllmRule(openai.Invalid(param, "invalid_value", "Invalid '%s': chat completions only support assistant "+
				"tool_calls of type 'function'.", param))
		}
		function := withKeysFirst(fn.Dict(), "arguments", "name")
		text, _ := function.Get("arguments")
		args, err := argumentsValue(param, text.Text(), most)
		if err != nil {
			return calls, err
		}
		function.Set("arguments", args)
		call := withKeysFirst(c.Dict(), "id", "function", "type")
		call.Set("function", chattemplate.DictValue(function))
		if rules == SGLang {
			call = sglangCall(call, function)
		}
		items[k] = chattemplate.DictValue(call)
	}

	return calls, nil
}

// argumentsValue returns the arguments of a tool call as a dict, from their JSON text. Param is the field with the call, for errors.
func argumentsValue(param, text string, most *int) (chattemplate.Value, error) {
	args, err := chattemplate.FromPythonJSON(unsafe.Slice(unsafe.StringData(text), len(text)), most)
	if errors.Is(err, chattemplate.ErrTooManyValues) {
		return args, openai.Invalid(param, "invalid_value",
			"Invalid '%s': the arguments of all tool calls together hold more than %d "+
				"values and keys. Send fewer.", param, maxArgumentValues)
	}
	if err != nil || args.Kind() != chattemplate.DictKind {
		args = chattemplate.DictValue(&chattemplate.Dict{})
	}
	return args, nil
}

// isString reports whether d has a string under key.
func isString(d *chattemplate.Dict, key string) bool {
	v, ok := d.Get(key)
	return ok && v.Kind() == chattemplate.String
}

// toolsValue returns the tools variable for templates, converted as vLLM converts it. Each tool has only the
// members that vLLM supports, in vLLM's order. An absent description or absent parameters are None. Engines with other rules convert
// some tools in another way: see [Rules.toolOf].
func toolsValue(raw []byte, rules Rules) (chattemplate.Value, error) {
	list, err := decodeJSON("tools", raw)
	if err != nil {
		return list, err
	}

	items := list.Items()
	if len(items) == 0 {
		return list, vllmRule(openai.Invalid("tools", "empty_array", "Invalid 'tools': empty array. Either provide at least one tool "+
			"or omit the field entirely."))
	}

	for i, t := range items {
		if t.Kind() != chattemplate.DictKind {
			return list, invalidTool(i, "it is not an object")
		}
		tool, reason := toolValue(t.Dict())
		if reason != "" {
			return list, invalidTool(i, reason)
		}
		tool, ok := rules.toolOf(t.Dict(), tool)
		if !ok {
			return list, &unreadError{openai.WhyTool}
		}
		items[i] = chattemplate.DictValue(tool)
	}

	return list, nil
}

// invalidTool returns the error for tool i of a request.
func invalidTool(i int, reason string) error {
	return vllmRule(openai.Invalid("tools["+strconv.Itoa(i)+"]", "invalid_type",
		"Invalid 'tools[%d]': %s. Send {\"type\": \"function\", \"function\": {\"name\", \"description\", \"parameters\"}}.", i, reason))
}

// toolValue returns one tool for templates, or the reason why t is not a valid tool. Defer_loading may be a
// member of the tool or of its function; the function's member has precedence.
func toolValue(t *chattemplate.Dict) (_ *chattemplate.Dict, reason string) {
	fn, _ := t.Get("function")
	if fn.Kind() != chattemplate.DictKind {
		return nil, "it has no function"
	}
	if kind, ok := t.Get("type"); ok && (kind.Kind() != chattemplate.String || kind.Text() != "function") {
		return nil, "its type is not function"
	}

	deferLoading, _ := t.Get("defer_loading")
	tool, function := chattemplate.NewDict(3), chattemplate.NewDict(5)
	for _, m := range []struct {
		name string
		kind chattemplate.Kind
		kept bool // present in the result even if it is None
	}{{"name", chattemplate.String, false}, {"description", chattemplate.String, true}, {"parameters", chattemplate.DictKind, true},
		{"strict", chattemplate.Bool, false}, {"defer_loading", chattemplate.Bool, false}} {
		v, ok := fn.Dict().Get(m.name)
		if !ok {
			v = chattemplate.NoneValue()
		}
		if m.name == "defer_loading" && v.Kind() == chattemplate.None {
			v = deferLoading
		}
		none := v.Kind() == chattemplate.None || v.Kind() == chattemplate.Undefined
		if !none && v.Kind() != m.kind || none && m.name == "name" {
			return nil, "the " + m.name + " of its function is missing or has the wrong type"
		}
		if !none || m.kept {
			function.Set(m.name, v)
		}
	}

	tool.Set("type", chattemplate.StringValue("function"))
	tool.Set("function", chattemplate.DictValue(function))
	if deferLoading.Kind() == chattemplate.Bool {
		tool.Set("defer_loading", deferLoading)
	}
	return tool, ""
}

// withKeysFirst returns a copy of d with the keys of first at the front, in that order. A key that d does
// not have is None. The order matters, because templates write dicts as JSON into the prompt.
func withKeysFirst(d *chattemplate.Dict, first ...string) *chattemplate.Dict {
	out := chattemplate.NewDict(d.Len() + len(first))
	for _, key := range first {
		v, ok := d.Get(key)
		if !ok {
			v = chattemplate.NoneValue()
		}
		out.Set(key, v)
	}

	d.Each(func(key string, v chattemplate.Value) { out.Set(key, v) })
	return out
}
