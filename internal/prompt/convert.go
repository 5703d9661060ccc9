package prompt

import (
	"slices"
	"strings"

	"github.com/stator-project/stator/internal/prompt/chattemplate"
	"github.com/stator-project/stator/internal/prompt/openai"
)

// vLLM converts requests of Messages and Responses into chats, and renders these as any chat. Package openai reads them so; this file has
// the parts that need the model, or make values for templates. The conversion of Messages:
//
//	Messages                          chat
//	--------------------------------  ----------------------------------------------------------------
//	system                            the first message; its texts follow each other without a separator
//	a message of the system           the same in its place, or appended to the first message, for a template
//	                                    that refuses it there: see needsSystemFirst
//	text blocks that are not empty    the content: a string, or parts if there are several
//	thinking                          reasoning
//	tool_use                          a tool call
//	tool_result                       a message of the tool before the rest of the user's message
//	images in a tool_result           a message of the user after that of the tool
//	tools                             functions; the type of a schema is object unless it has one
//	thinking.type disabled            a reasoning effort: see effortOfDisabledThinking
//
// The conversion of Responses:
//
//	Responses                         chat
//	--------------------------------  ----------------------------------------------------------------
//	instructions                      the first message
//	reasoning, message of the         one message of the assistant, as long as it has no such member yet
//	  assistant, function_call
//	function_call_output              a message of the tool
//	a last message that is open       the same, which the model continues
//	tools: function, custom           functions; a custom tool has one parameter, its input
//	tools: namespace                  its functions, named NAMESPACE__FUNCTION
//	tools that the engine uses        none

// chatOf returns the messages to render. If a template needs system messages first, the system messages of Messages are one: the texts
// follow each other without a separator.
func (m *Model) chatOf(req *Request) []openai.Message {
	isSystem := func(m openai.Message) bool { return m.Role == "system" }
	if req.Endpoint != Messages || !m.mergesSystem || len(req.Messages) == 0 || !slices.ContainsFunc(req.Messages[1:], isSystem) {
		return req.Messages
	}

	var text strings.Builder
	merged := make([]openai.Message, 1, len(req.Messages)+1)
	for _, message := range req.Messages {
		if isSystem(message) {
			text.WriteString(message.Content)
			continue
		}
		merged = append(merged, message)
	}
	merged[0] = openai.Message{Role: "system", Kind: openai.TextContent, Content: text.String()}
	return merged
}

// callsValue returns tool calls for templates. The order of members differs between the APIs, because vLLM checks a chat that it has
// made of Messages once more, which orders them, and no chat that it has made of Responses.
func callsValue(calls []openai.Call, ep Endpoint, most *int) (chattemplate.Value, error) {
	items := make([]chattemplate.Value, len(calls))
	for i, c := range calls {
		args, err := argumentsValue(promptField(&Request{Endpoint: ep}), c.Arguments, most)
		if err != nil {
			return args, err
		}
		function, call := chattemplate.NewDict(2), chattemplate.NewDict(3)
		if ep == Responses {
			function.Set("name", chattemplate.StringValue(c.Name))
		}
		function.Set("arguments", args)
		function.Set("name", chattemplate.StringValue(c.Name))
		call.Set("id", chattemplate.StringValue(c.ID))
		call.Set("function", chattemplate.DictValue(function))
		call.Set("type", chattemplate.StringValue("function"))
		items[i] = chattemplate.DictValue(call)
	}
	return chattemplate.ListValue(items), nil
}

// Bounds of tools of Messages and Responses, whose conversion may be many times as large as they are: a request with more is unread.
const (
	maxTools         = 1024
	maxNamespaceName = 256 // bytes
)

// toolsOf returns the tools variable for templates. An empty list of Messages is one for templates, too.
func (m *Model) toolsOf(req *Request) (chattemplate.Value, error) {
	if req.Endpoint == Chat {
		return toolsValue(req.Tools, m.rules)
	}

	list, err := decodeJSON("tools", req.Tools)
	if err != nil {
		return list, err
	}
	var tools []chattemplate.Value
	for _, item := range list.Items() {
		var ok bool
		if req.Endpoint == Messages {
			tools, ok = appendFunction(tools, "", messagesTool(item))
		} else {
			tools, ok = appendResponsesTool(tools, item)
		}
		if !ok || len(tools) > maxTools {
			return list, &unreadError{openai.WhyTool}
		}
	}
	return chattemplate.ListValue(tools), nil
}

// appendFunction appends a function to tools, under a name with a prefix. It returns false if the function has another form than vLLM
// accepts.
func appendFunction(tools []chattemplate.Value, prefix string, function *chattemplate.Dict) (_ []chattemplate.Value, ok bool) {
	outer := chattemplate.NewDict(1)
	outer.Set("function", chattemplate.DictValue(function))
	tool, reason := toolValue(outer)
	if reason != "" {
		return tools, false
	}
	if prefix != "" {
		fn, _ := tool.Get("function")
		name, _ := fn.Dict().Get("name")
		fn.Dict().Set("name", chattemplate.StringValue(prefix+name.Text()))
	}
	return append(tools, chattemplate.DictValue(tool)), true
}

// messagesTool returns a tool of Messages as a function: its input_schema are the parameters, and its type is an object if it has none.
func messagesTool(tool chattemplate.Value) *chattemplate.Dict {
	function := chattemplate.NewDict(5)
	if tool.Kind() != chattemplate.DictKind {
		return function // without a name it is refused
	}
	for _, name := range []string{"name", "description", "strict", "defer_loading"} {
		if v, ok := tool.Dict().Get(name); ok {
			function.Set(name, v)
		}
	}

	schema, _ := tool.Dict().Get("input_schema")
	if schema.Kind() != chattemplate.DictKind {
		return chattemplate.NewDict(0)
	}
	if _, ok := schema.Dict().Get("type"); !ok {
		schema.Dict().Set("type", chattemplate.StringValue("object"))
	}
	function.Set("parameters", schema)
	return function
}

// engineTools are the types of tools of Responses that models do not see: engines use them by themselves.
var engineTools = []string{
	"web_search", "web_search_2025_08_26", "web_search_preview", "web_search_preview_2025_03_11", "code_interpreter", "file_search",
	"image_generation", "mcp", "local_shell", "computer_use_preview",
}

// customParameters are the parameters of the function as which models see a custom tool, in JSON.
const customParameters = `{"type":"object","properties":{"input":{"type":"string",` +
	`"description":"The freeform text payload for this tool."}},"required":["input"],"additionalProperties":false}`

// appendResponsesTool appends what models see of a tool of Responses. It returns false for a form that is not known.
func appendResponsesTool(tools []chattemplate.Value, tool chattemplate.Value) (_ []chattemplate.Value, ok bool) {
	if tool.Kind() != chattemplate.DictKind {
		return tools, false
	}
	d := tool.Dict()
	kind, _ := d.Get("type")
	switch {
	case kind.Text() == "function":
		return appendFunction(tools, "", d)
	case kind.Text() == "custom":
		return appendCustom(tools, d)
	case kind.Text() == "namespace":
		return appendNamespace(tools, d)
	}
	return tools, slices.Contains(engineTools, kind.Text())
}

// appendCustom appends a custom tool. vLLM refuses one whose input has a grammar.
func appendCustom(tools []chattemplate.Value, d *chattemplate.Dict) (_ []chattemplate.Value, ok bool) {
	if _, has := d.Get("format"); has {
		return tools, false
	}
	parameters, err := decodeJSON("tools", []byte(customParameters))
	if err != nil {
		return tools, false
	}

	function := chattemplate.NewDict(3)
	for _, name := range []string{"name", "description"} {
		if v, ok := d.Get(name); ok {
			function.Set(name, v)
		}
	}
	function.Set("parameters", parameters)
	return appendFunction(tools, "", function)
}

// namespaceSeparator is between the name of a namespace and the name of its function.
const namespaceSeparator = "__"

// appendNamespace appends the functions of a namespace. Its custom tools are not seen.
func appendNamespace(tools []chattemplate.Value, d *chattemplate.Dict) (_ []chattemplate.Value, ok bool) {
	name, _ := d.Get("name")
	if !isString(d, "name") || !isString(d, "description") || len(name.Text()) > maxNamespaceName {
		return tools, false
	}
	inner, _ := d.Get("tools")
	if inner.Kind() != chattemplate.ListKind || inner.Len() > maxTools {
		return tools, false
	}

	for _, tool := range inner.Items() {
		if tool.Kind() != chattemplate.DictKind {
			return tools, false
		}
		switch kind, _ := tool.Dict().Get("type"); kind.Text() {
		case "custom":
		case "function":
			tools, ok = appendFunction(tools, name.Text()+namespaceSeparator, tool.Dict())
			if !ok {
				return tools, false
			}
		default:
			return tools, false
		}
	}
	return tools, true
}
