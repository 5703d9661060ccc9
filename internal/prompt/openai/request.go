package openai

import (
	"slices"
	"unsafe"
)

// Endpoint is the API of a request.
type Endpoint uint8

// The endpoints whose prompts are parsed.
const (
	Chat        Endpoint = iota // POST /v1/chat/completions
	Completions                 // POST /v1/completions
	Embeddings                  // POST /v1/embeddings
	Messages                    // POST /v1/messages, Anthropic's API
	Responses                   // POST /v1/responses
)

// endpointNames holds the names that String returns.
var endpointNames = [...]string{"chat", "completions", "embeddings", "messages", "responses"}

func (e Endpoint) String() string {
	if int(e) < len(endpointNames) {
		return endpointNames[e]
	}
	return "unknown"
}

// EndpointOf returns the endpoint that String names so.
func EndpointOf(name string) (Endpoint, bool) {
	i := slices.Index(endpointNames[:], name)
	return Endpoint(max(i, 0)), i >= 0
}

// IsChat reports whether a chat template renders the prompts of the endpoint.
func (e Endpoint) IsChat() bool { return e == Chat || e == Messages || e == Responses }

// Request is the content of a parsed request. Its strings and raw slices alias the body or the memory of the
// request: the body must not change while the request is in use.
type Request struct {
	Endpoint Endpoint
	Model    string

	Stream, IncludeUsage bool // stream; stream_options.include_usage

	// MaxTokens is max_output_tokens of Responses, and elsewhere max_completion_tokens, else max_tokens; 0 if the client set
	// none, or none above 0 (see Facts).
	MaxTokens int
	// N is the number of answers that the client asks for; 1 if it did not set n.
	N       int
	Seed    int64
	HasSeed bool

	Conversation
	// Prompts are the prompts of a completion or embedding request: one or more, in order.
	Prompts []Prompt
	Encoding

	// CacheSalt separates prefix caches. User and SessionID identify the client.
	CacheSalt, User, SessionID string
	// Hints are the routing hints in nvext; nil if that is absent or null.
	Hints *Hints

	// PromptLogprobs is set if the answer needs the probabilities of the prompt's own tokens, by prompt_logprobs, or by
	// echo with a number of logprobs. An engine computes the whole prompt then, and reads no cache of it.
	PromptLogprobs bool
	// Unread is the reason why the prompt cannot be read here although some engine may be able to. Nothing is known of the tokens
	// of an unread prompt.
	Unread Why
	// Facts are properties of the request that some engines refuse.
	Facts Facts

	memory memory
}

// Conversation is what a chat template renders, for endpoints with chats.
type Conversation struct {
	// Messages are its messages. The other APIs are converted as vLLM converts them: system and
	// instructions are the first message, and the result of a tool is a separate message.
	Messages []Message
	// Tools, TemplateArgs and Documents are the raw JSON of tools, chat_template_kwargs and
	// documents; nil if absent or null. Each API has its own form of tools.
	Tools, TemplateArgs, Documents []byte
	// ReasoningEffort is reasoning_effort, reasoning.effort or output_config.effort as sent; empty if absent.
	ReasoningEffort string
	// ThinkingDisabled is set if thinking.type of Messages is disabled. It replaces ReasoningEffort.
	ThinkingDisabled bool
	// AddGenerationPrompt is true unless the client set it to false.
	AddGenerationPrompt  bool
	ContinueFinalMessage bool
}

// Encoding is how the text of a prompt becomes tokens.
type Encoding struct {
	// AddSpecialTokens puts the tokenizer's beginning and end around the text. Its default is false for Chat and Messages,
	// whose templates have them, and true elsewhere: vLLM adds them to Responses too.
	AddSpecialTokens bool
	// Truncate is the number of tokens of the prompt that are kept: -1 means as many as the model accepts,
	// and 0 all. TruncateRight drops the end of the prompt instead of its start.
	Truncate      int
	TruncateRight bool
}

// Why is the reason why a prompt is not read.
type Why uint8

// The reasons. NumWhys is their number, with WhyRead.
const (
	WhyRead     Why = iota // it was read
	WhyTemplate            // the request has a chat template
	WhyForm                // of the prompt, such as embeddings in place of text
	WhyPart                // of a conversation: its type or one of its members is not known
	WhyTool                // its type is not known, or messages change the list of tools
	WhyPrevious            // the engine has the beginning of the conversation
	WhyField               // of the request, which has a value that is not known
	WhyEngine              // the kind of engine converts this API in a way that is not known
	WhyHarmony             // the model's prompts of this API are not made by its template
	WhyPath                // prompts of this path are not read
	NumWhys
)

// whyNames holds the names that String returns.
var whyNames = [NumWhys]string{"", "template", "form", "part", "tool", "previous_response", "field", "engine", "harmony", "path"}

// String returns the reason as a label of metrics; empty for WhyRead.
func (w Why) String() string { return whyNames[w] }

// memory is the storage that a request keeps from one ParseInto to the next. Its slices have length 0 between
// them, except for parts.
type memory struct {
	arena    []byte
	messages []Message
	// parts are the parts of all messages, one after another.
	parts   []Part
	prompts []Prompt
	hints   Hints
}

// Reset empties r and keeps its memory for ParseInto. R then refers to no body.
func (r *Request) Reset() {
	m := &r.memory
	clear(r.Messages)
	clear(r.Prompts)
	clear(m.parts)
	*r = Request{memory: memory{arena: m.arena, messages: m.messages, parts: m.parts[:0], prompts: m.prompts}}
}

// Size returns the bytes of the memory that r keeps for ParseInto.
func (r *Request) Size() int {
	m := &r.memory
	return cap(m.arena) + cap(m.messages)*int(unsafe.Sizeof(Message{})) + cap(m.parts)*int(unsafe.Sizeof(Part{})) +
		cap(m.prompts)*int(unsafe.Sizeof(Prompt{}))
}

// Facts is a set of properties of a request that some engines refuse and others accept.
type Facts uint16

// The facts.
const (
	// MaxTokensZero and MaxTokensNegative are about max_tokens, and MaxCompletionTokensBelowOne is about
	// max_completion_tokens. With 0 a completion scores its prompt, and -1 is llama.cpp's word for no bound.
	MaxTokensZero Facts = 1 << iota
	MaxTokensNegative
	MaxCompletionTokensBelowOne
	// Echo is set if echo is true: the answer begins with the prompt.
	Echo
	// ToolChoice is set unless tool_choice is absent, null or "none".
	ToolChoice
	// FewerTools is set if tool_choice is "none" or an object: SGLang then shows models no tool, or the named one.
	FewerTools
	// OwnTemplate is set if the request has a chat_template.
	OwnTemplate
	// BadTruncation is set if truncate_prompt_tokens is neither -1 nor positive.
	BadTruncation
	// OddPrompts is set if prompt or input mixes kinds or holds objects, as llama.cpp and SGLang accept.
	OddPrompts
	// MaxTokensNull is set if max_tokens is null, which is no bound for a completion; without it the bound is 16.
	MaxTokensNull
	// TokenIDs is set if return_token_ids is true.
	TokenIDs
)

// Prompt is one prompt of a completion or embedding request: text, or token ids.
type Prompt struct {
	Text string
	// Tokens is nil for text.
	Tokens []uint32
}

// ContentKind is the form of a message's content.
type ContentKind uint8

// The kinds of content.
const (
	NoContent ContentKind = iota // absent or null
	TextContent
	PartsContent
)

// Message is one turn of a conversation.
type Message struct {
	Role string
	Kind ContentKind
	// Content is the text, for TextContent.
	Content string
	// Parts are the parts, for PartsContent.
	Parts []Part
	// Name, Task, ToolCallID and Reasoning (reasoning, else reasoning_content) are empty if absent. Has
	// distinguishes absent from empty.
	Name, Task, ToolCallID, Reasoning string
	Has                               Members
	// ToolCalls is the raw JSON array of tool_calls, and Tools the same of a developer's tools; nil if
	// absent or null.
	ToolCalls, Tools []byte
	// Calls are the tool calls of Messages and Responses.
	Calls []Call
}

// Call is a call of a tool by the model.
type Call struct {
	ID, Name string
	// Arguments is the JSON text of the arguments. A model has written it, so it may be anything.
	Arguments string
}

// Members is a set of optional members that a message has.
type Members uint16

// The members whose presence templates see.
const (
	NameMember Members = 1 << iota
	TaskMember
	ToolCallIDMember // present; null if NullToolCallID is set too
	NullToolCallID
	ReasoningMember
	NullName
	NullContent
	// OwnMembers is set if the message has tools, tool_calls, reasoning or a task.
	OwnMembers
	// FromReasoningContent is set if Reasoning is of reasoning_content, because the message has no reasoning.
	FromReasoningContent
)

// PartType is the type of a part of a message's content.
type PartType uint8

// The types of part.
const (
	TextPart PartType = iota
	ImagePart
	AudioPart
	VideoPart
	// ReferencePart names a tool that the template may expand; its Text is the name.
	ReferencePart
	// EmbedsPart holds embeddings of an image or of audio.
	EmbedsPart
	// OtherPart is a part of an unknown type.
	OtherPart
)

// Part is one part of a message's content.
type Part struct {
	Type PartType
	// Text is the text of a TextPart.
	Text string
	// Hash is the hash of what an image, audio or video part refers to (its URL or data as
	// sent), so that equal media make equal prompts; zero for text.
	Hash [16]byte
	// Extra means that the part has members for which [PartField] is false. Templates that walk over parts
	// see them.
	Extra bool
	// Raw is the part's own JSON.
	Raw []byte

	// Loose is set for a bare string, and for a part of type input_text or output_text, which other APIs have.
	Loose bool
	// UUID is set if the part has a uuid that is not null.
	UUID bool
}

// IsOwn reports whether a part is a bare string or has a type of chats, and not another API's.
func (p *Part) IsOwn() bool { return !p.Loose || len(p.Raw) > 0 && p.Raw[0] == '"' }

// Limits bound what a request may hold. The zero value of a field means its default. With the defaults, parsing
// and preparing a request allocate at most twice its body and 48 MiB.
type Limits struct {
	// Depth is the deepest nesting of arrays and objects; default 128.
	Depth int
	// Messages bounds messages, default 16,384. Parts bounds the parts of all messages together, default
	// 16,384. Prompts bounds prompts, default 16,384. Tokens bounds token ids, default 4 million.
	Messages, Parts, Prompts, Tokens int
	// Values bounds the JSON values and keys that templates may read, in tools, tool calls, documents,
	// template arguments and parts together; default 131,072.
	Values int
}

// WithDefaults returns the limits with the defaults of zero fields.
func (l Limits) WithDefaults() Limits {
	for _, f := range []struct {
		field *int
		value int
	}{{&l.Depth, 128}, {&l.Messages, 1 << 14}, {&l.Parts, 1 << 14}, {&l.Prompts, 1 << 14}, {&l.Tokens, 4 << 20}, {&l.Values, 1 << 17}} {
		if *f.field <= 0 {
			*f.field = f.value
		}
	}
	return l
}
