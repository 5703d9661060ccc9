package migrate

import (
	"bytes"
	"strconv"

	"github.com/stator-project/stator/internal/prompt/openai"
)

// Promise is the answer to whether a stream is continued after a failure of its worker, with the reason if it is not.
type Promise string

// The promises, and the reasons against one.
const (
	Exact   Promise = "exact"   // with the tokens that the worker would have made
	Sampled Promise = "sampled" // with tokens of the same distribution

	NotGreedy  Promise = "temperature"     // the temperature is not 0
	Several    Promise = "several_answers" // n is not 1
	Penalties  Promise = "penalty"         // of presence, frequency or repetition
	Minimum    Promise = "min_tokens"
	Structured Promise = "structured" // the answer must have a form
	Tools      Promise = "tools"
	Logprobs   Promise = "logprobs"
	Stops      Promise = "stop"   // stop strings
	Media      Promise = "prompt" // it has parts that are no text
	OtherParts Promise = "member" // the body has a member that may change the answer
	NoIDs      Promise = "engine" // the kind of engine returns no token ids
)

// Promises returns all values.
func Promises() []Promise {
	return []Promise{Exact, Sampled, NotGreedy, Several, Penalties, Minimum, Structured, Tools, Logprobs, Stops, Media, OtherParts, NoIDs}
}

// rule is about a member of a request's body. The continuation has it if carried is set. Others are about the prompt, or change nothing;
// or they are the reason why, unless their value is harmless.
type rule struct {
	carried  bool
	why      Promise
	harmless func(value []byte) bool
}

// rules lists the members that are known. Null is harmless for all of them.
var rules = map[string]rule{
	"model": {carried: true}, "temperature": {carried: true}, "top_p": {carried: true}, "top_k": {carried: true}, "min_p": {carried: true},
	"seed": {carried: true}, "logit_bias": {carried: true}, "allowed_token_ids": {carried: true}, "stop_token_ids": {carried: true},
	"ignore_eos": {carried: true}, "skip_special_tokens": {carried: true}, "cache_salt": {carried: true}, "priority": {carried: true},
	"user": {carried: true}, "session_id": {carried: true},

	// About the prompt, whose tokens the engine returns.
	"messages": {}, "prompt": {}, "chat_template": {}, "chat_template_kwargs": {}, "add_generation_prompt": {},
	"continue_final_message": {}, "add_special_tokens": {}, "documents": {}, "reasoning_effort": {}, "truncate_prompt_tokens": {},
	"truncation_side": {},
	// Of the continuation's own, or without an effect on tokens.
	"stream": {}, "stream_options": {}, "max_tokens": {}, "max_completion_tokens": {}, "return_token_ids": {}, "nvext": {}, "metadata": {},
	"store": {}, "service_tier": {}, "prompt_cache_key": {}, "safety_identifier": {}, "request_id": {}, "parallel_tool_calls": {},
	"include_stop_str_in_output": {}, "return_tokens_as_token_ids": {}, "length_penalty": {},

	"n": {why: Several, harmless: isOne}, "best_of": {why: Several, harmless: isOne},
	"presence_penalty": {why: Penalties, harmless: isZero}, "frequency_penalty": {why: Penalties, harmless: isZero},
	"repetition_penalty": {why: Penalties, harmless: isOne}, "min_tokens": {why: Minimum, harmless: isZero},
	"response_format": {why: Structured}, "structured_outputs": {why: Structured}, "guided_json": {why: Structured},
	"guided_regex": {why: Structured}, "guided_choice": {why: Structured}, "guided_grammar": {why: Structured},
	"tools": {why: Tools, harmless: isEmpty}, "tool_choice": {why: Tools, harmless: isNone}, "functions": {why: Tools, harmless: isEmpty},
	"function_call": {why: Tools, harmless: isNone},
	"logprobs":      {why: Logprobs, harmless: isFalse}, "top_logprobs": {why: Logprobs, harmless: isZero},
	"prompt_logprobs": {why: Logprobs}, "logprob_token_ids": {why: Logprobs, harmless: isEmpty},
	"stop": {why: Stops, harmless: isEmpty}, "bad_words": {why: OtherParts, harmless: isEmpty},
	"echo": {why: OtherParts, harmless: isFalse}, "use_beam_search": {why: OtherParts, harmless: isFalse},
	"suffix": {why: OtherParts, harmless: isEmpty}, "watermarking": {why: OtherParts, harmless: isFalse},
	"include_reasoning": {why: OtherParts, harmless: isTrue}, "spaces_between_special_tokens": {why: OtherParts, harmless: isTrue},
	"prompt_embeds": {why: Media},
}

func isOne(value []byte) bool   { return isNumber(value, 1) }
func isZero(value []byte) bool  { return isNumber(value, 0) }
func isFalse(value []byte) bool { return string(value) == "false" }
func isTrue(value []byte) bool  { return string(value) == "true" }
func isNone(value []byte) bool  { return string(value) == `"none"` }

// isNumber reports whether a value is that number, in any of its forms.
func isNumber(value []byte, want float64) bool {
	v, err := strconv.ParseFloat(string(value), 64)
	return err == nil && v == want
}

// isEmpty reports whether a value is an empty string or an empty list.
func isEmpty(value []byte) bool {
	return string(value) == `""` || len(value) > 0 && value[0] == '[' && string(bytes.TrimSpace(value[1:])) == "]"
}

// maxMembers bounds the members that a continuation has from its request, in bytes.
const maxMembers = 16 << 10

// defaultTokens is the bound of a completion without max_tokens.
const defaultTokens = 16

// Request has the parts of a client's request that continuations need. It refers to nothing of its body, and does not change.
type Request struct {
	chat, exact bool
	usage       bool   // the client has asked for it
	ids         bool   // the client has asked for token ids
	most        int    // tokens of the answer; 0 is no bound
	members     []byte // with a comma after each
}

// Read reads the body of a chat or a completion that asks for a stream. The request is nil unless the promise holds. With sampled,
// temperatures other than 0 are promised, too.
func Read(endpoint openai.Endpoint, body []byte, sampled bool) (*Request, Promise) {
	parsed, err := openai.Parse(endpoint, body, openai.Limits{})
	if err != nil {
		return nil, OtherParts // the engine refuses it
	}

	r := &Request{chat: endpoint == openai.Chat, usage: parsed.IncludeUsage, ids: parsed.Facts&openai.TokenIDs != 0, most: parsed.MaxTokens}
	why := ofPrompt(parsed)
	_ = openai.EachMember(body, func(name string, from, to int) { // Parse has read it
		against := r.see(name, body[from:to])
		if why == Exact {
			why = against
		}
	})
	const noTokens = openai.MaxTokensZero | openai.MaxTokensNegative | openai.MaxCompletionTokensBelowOne
	switch {
	case why != Exact:
		return nil, why
	case parsed.Facts&noTokens != 0 || len(r.members) > maxMembers:
		return nil, OtherParts
	case !r.exact && !sampled:
		return nil, NotGreedy
	}

	if !r.chat && r.most == 0 && parsed.Facts&openai.MaxTokensNull == 0 {
		r.most = defaultTokens
	}
	if !r.exact {
		return r, Sampled
	}
	return r, Exact
}

// ofPrompt returns Exact for a prompt that token ids can stand for, and else the reason.
func ofPrompt(parsed *openai.Request) Promise {
	if parsed.Unread != openai.WhyRead && parsed.Unread != openai.WhyTemplate || len(parsed.Prompts) > 1 {
		return Media
	}
	for i := range parsed.Messages {
		for j := range parsed.Messages[i].Parts {
			if parsed.Messages[i].Parts[j].Type != openai.TextPart {
				return Media
			}
		}
	}
	return Exact
}

// see reads a member of the body, and returns Exact unless it is a reason against a promise.
func (r *Request) see(name string, member []byte) Promise {
	value := openai.MemberValue(member)
	rule, known := rules[name]
	isNull := string(value) == "null"
	switch {
	case name == "temperature":
		r.exact = isZero(value)
	case name == "stream_options" && !isNull && !hasUsageAlone(value):
		return OtherParts
	case !known:
		return OtherParts
	case isNull || rule.why == "":
	case rule.harmless == nil || !rule.harmless(value):
		return rule.why
	}
	if rule.carried {
		r.members = append(append(r.members, member...), ',')
	}
	return Exact
}

// hasUsageAlone reports whether stream_options set nothing but include_usage.
func hasUsageAlone(options []byte) bool {
	alone := true
	err := openai.EachMember(options, func(name string, from, to int) {
		value := openai.MemberValue(options[from:to])
		alone = alone && (name == "include_usage" || isFalse(value) || string(value) == "null")
	})
	return alone && err == nil
}

// WithIDs returns a body that asks for token ids, in new memory unless it does already.
func (r *Request) WithIDs(body []byte) []byte {
	end := bytes.LastIndexByte(body, '}')
	if r.ids || end < 0 {
		return body
	}
	const ask = `,"return_token_ids":true}` // of several members with one name engines take the last one
	return append(append(make([]byte, 0, end+len(ask)), body[:end]...), ask...)
}
