package handoff

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/stator-project/stator/internal/prompt/openai"
)

// The functions of this file are for vLLM's NixlConnector, whose decode worker pulls the KV cache. The router sends a request
// twice, one after the other:
//
//	to         body                                                        answer
//	prefill    Prefill: one token, no stream, "do_remote_decode": true     one token, and "kv_transfer_params"
//	decode     Decode: the client's, with these "kv_transfer_params"       the client's
//
// Between both, the prefill worker keeps the blocks for 30 s.

// Endpoint is the shape of a request's body: the members that bound its answer differ.
type Endpoint uint8

// The endpoints of vLLM whose requests can be split.
const (
	Chat        Endpoint = iota // /v1/chat/completions
	Completions                 // /v1/completions
	Responses                   // /v1/responses
	Messages                    // /v1/messages
	Generate                    // /inference/v1/generate
)

const params = "kv_transfer_params"

// computeOnly are the parameters of a transfer with which a worker computes a prompt and keeps its blocks.
const computeOnly = `"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,` +
	`"remote_block_ids":null,"remote_host":null,"remote_port":null}`

// oneToken are the members by which a request asks for one token.
var oneToken = map[Endpoint]string{
	Chat:        `"max_tokens":1,"max_completion_tokens":1`,
	Completions: `"max_tokens":1`,
	Responses:   `"max_output_tokens":1`,
	Messages:    `"max_tokens":1`,
}

// replaced are the members of a client's request that a prefill request has with other values, or does not have.
var replaced = map[string]bool{
	"stream": true, "stream_options": true, "min_tokens": true,
	"max_tokens": true, "max_completion_tokens": true, "max_output_tokens": true,
	params: true,
}

// errNoObject is the error for a body that is no JSON object.
var errNoObject = errors.New("the request body is no JSON object")

// Prefill appends to dst the body with which a prefill worker computes the prompt of a client's body, and keeps its blocks
// until a decode worker has pulled them. Its answer has one token and is not streamed: vLLM's streams have no parameters of
// transfers. All other members keep their bytes and their order.
func Prefill(dst, body []byte, e Endpoint) ([]byte, error) {
	if e == Generate {
		return prefillGenerate(dst, body)
	}
	return splice(dst, body, func(name string) bool { return replaced[name] }, `"stream":false,`+oneToken[e]+","+computeOnly)
}

// prefillGenerate is Prefill for the endpoint whose bounds are members of "sampling_params". Engines take the last of several
// members with one name.
func prefillGenerate(dst, body []byte) ([]byte, error) {
	sampling := []byte("{}")
	err := openai.EachMember(body, func(name string, from, to int) {
		if name == "sampling_params" {
			sampling = valueOf(body[from:to])
		}
	})
	if err != nil {
		return dst, err
	}
	if !isObject(sampling) {
		sampling = []byte("{}")
	}

	bounded, fault := splice([]byte(`"sampling_params":`), sampling, func(name string) bool { return replaced[name] }, `"max_tokens":1`)
	if fault != nil {
		return dst, fault
	}
	drop := func(name string) bool { return name == "sampling_params" || replaced[name] }
	return splice(dst, body, drop, `"stream":false,`+string(bounded)+","+computeOnly)
}

// splice appends a JSON object to dst, without the members that drop selects and with others at its end.
func splice(dst, object []byte, drop func(name string) bool, add string) ([]byte, error) {
	if !isObject(object) {
		return dst, errNoObject
	}
	begin := len(dst)
	dst = append(dst, '{')
	err := openai.EachMember(object, func(name string, from, to int) {
		if !drop(name) {
			dst = append(append(dst, object[from:to]...), ',')
		}
	})
	if err != nil {
		return dst[:begin], err
	}
	return append(append(dst, add...), '}'), nil
}

// isObject reports whether a text begins as a JSON object.
func isObject(text []byte) bool {
	text = bytes.TrimLeft(text, " \t\r\n")
	return len(text) > 0 && text[0] == '{'
}

// valueOf returns the value of a member's text: what follows the colon behind the name.
func valueOf(member []byte) []byte {
	at := 1 // behind the quote that begins the name
	for member[at] != '"' {
		if member[at] == '\\' {
			at++
		}
		at++
	}
	colon := at + bytes.IndexByte(member[at:], ':')
	return bytes.TrimLeft(member[colon+1:], " \t\r\n")
}

// MaxAnswer bounds the answer of a prefill worker, in bytes. It may repeat the token ids of a prompt.
const MaxAnswer = 2 << 20

// ErrNoTransfer means that the answer of a prefill worker has no parameters of a transfer: it is not configured to transfer KV
// caches, or it has kept no blocks.
var ErrNoTransfer = errors.New("the answer of the prefill worker has no kv_transfer_params: start it with vLLM's " +
	"--kv-transfer-config for NixlConnector")

// Decode appends to dst a client's body with the parameters that a prefill worker has answered, byte for byte. It returns an
// error for parameters with which a decode worker would fail: without block ids, vLLM ends its process.
func Decode(dst, body, answer []byte) ([]byte, error) {
	if len(answer) > MaxAnswer {
		return dst, fmt.Errorf("the answer of the prefill worker has more than %d bytes", MaxAnswer)
	}
	var given []byte
	err := openai.EachMember(answer, func(name string, from, to int) {
		if name == params {
			given = valueOf(answer[from:to])
		}
	})
	switch {
	case err != nil:
		return dst, fmt.Errorf("the answer of the prefill worker is no JSON: %s", err.Message)
	case given == nil, string(given) == "null":
		return dst, ErrNoTransfer
	}
	if err := checkTransfer(given); err != nil {
		return dst, fmt.Errorf("the answer of the prefill worker: %w", err)
	}
	return splice(dst, body, func(name string) bool { return name == params }, `"`+params+`":`+string(given))
}

// required are the members that vLLM's decode worker needs, with a check of each value.
var required = []struct {
	name string
	ok   func(value []byte) bool
	want string
}{
	{"do_remote_prefill", func(v []byte) bool { return string(v) == "true" }, "true"},
	{"remote_block_ids", hasBlocks, "a list of block ids, or one such list for each KV cache group, with at least one id"},
	{"remote_engine_id", isText, "a text"},
	{"remote_request_id", isText, "a text"},
	{"remote_host", isText, "a text"},
	{"remote_port", func(v []byte) bool { return isNumber(v, 1, 65535) }, "a port"},
	{"tp_size", func(v []byte) bool { return isNumber(v, 1, 1<<20) }, "a number of at least 1"},
}

// checkTransfer returns what is wrong with parameters of a transfer.
func checkTransfer(given []byte) error {
	if !isObject(given) {
		return errors.New("kv_transfer_params is no object")
	}
	values := map[string][]byte{}
	err := openai.EachMember(given, func(name string, from, to int) { values[name] = valueOf(given[from:to]) })
	if err != nil {
		return errors.New(err.Message) // it was read before, so this cannot happen
	}

	for _, r := range required {
		value, ok := values[r.name]
		if !ok {
			return fmt.Errorf("kv_transfer_params has no %s", r.name)
		}
		if !r.ok(value) {
			return fmt.Errorf("kv_transfer_params.%s is not %s", r.name, r.want)
		}
	}
	return nil
}

func isText(value []byte) bool {
	var text string
	return value[0] == '"' && json.Unmarshal(value, &text) == nil && text != ""
}

func isNumber(value []byte, low, high int) bool {
	var n int
	return value[0] != 'n' && json.Unmarshal(value, &n) == nil && n >= low && n <= high
}

// hasBlocks reports whether a value is a list of block ids, or a list of such lists, with at least one id. Lists that are null
// are lists without ids, and an id that is null is refused.
func hasBlocks(value []byte) bool {
	var groups [][]*uint64
	if json.Unmarshal(value, &groups) != nil {
		var one []*uint64
		if json.Unmarshal(value, &one) != nil {
			return false
		}
		groups = [][]*uint64{one}
	}

	count := 0
	for _, ids := range groups {
		for _, id := range ids {
			if id == nil {
				return false
			}
			count++
		}
	}
	return count > 0
}
