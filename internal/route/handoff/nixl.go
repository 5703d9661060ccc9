package handoff

import (
	"bytes"
	"cmp"
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

// replaced are the members of a client's request that a prefill request to vLLM has with other values, or does not have.
var replaced = union(streams, map[string]bool{
	"min_tokens": true, "max_tokens": true, "max_completion_tokens": true, "max_output_tokens": true,
})

// firstToken appends a body that asks vLLM for one token, without a stream: streams have no parameters of transfers.
func firstToken(dst, body []byte, e Endpoint, transfer string) ([]byte, error) {
	if e == Generate {
		return firstTokenOfGenerate(dst, body, transfer)
	}
	return splice(dst, body, drops(replaced), `"stream":false,`+oneToken[e]+","+transfer)
}

// firstTokenOfGenerate is firstToken for the endpoint whose bounds are members of "sampling_params".
func firstTokenOfGenerate(dst, body []byte, transfer string) ([]byte, error) {
	const member = "sampling_params"
	values, err := members(body, member)
	if err != nil {
		return dst, err
	}
	sampling := values[member]
	if !isObject(sampling) {
		sampling = []byte("{}")
	}

	bounded, err := splice([]byte(`"`+member+`":`), sampling, drops(replaced), `"max_tokens":1`)
	if err != nil {
		return dst, err
	}
	drop := func(name string) bool { return name == member || replaced[name] }
	return splice(dst, body, drop, `"stream":false,`+string(bounded)+","+transfer)
}

// decodeNixl appends a client's body with the parameters that a prefill worker has answered, byte for byte. Without block ids,
// vLLM ends its process.
func decodeNixl(dst, body, answer []byte) ([]byte, error) {
	values, err := members(answer, params)
	if err != nil {
		return dst, fmt.Errorf("the answer of the prefill worker is no JSON object: %w", err)
	}
	given := values[params]
	if isNull(given) {
		return dst, ErrNoTransfer
	}
	if err := checkNixl(given); err != nil {
		return dst, fmt.Errorf("the answer of the prefill worker: %w", err)
	}
	return splice(dst, body, drops(transfer), `"`+params+`":`+string(given))
}

// required are the members that vLLM's decode worker needs, with a check of each value. Versions with one list of block ids,
// before there was one for each KV cache group, do not have those marked as newer.
var required = []struct {
	name  string
	newer bool
	ok    func(value []byte) bool
	want  string
}{
	{"do_remote_prefill", false, func(v []byte) bool { return string(v) == "true" }, "true"},
	{"remote_block_ids", false, hasBlocks, "a list of block ids, or one such list for each KV cache group, with at least one id"},
	{"remote_engine_id", false, isText, "a text"},
	{"remote_host", false, isText, "a text"},
	{"remote_port", false, func(v []byte) bool { return isNumber(v, 1, 65535) }, "a port"},
	{"remote_request_id", true, isText, "a text"},
	{"tp_size", true, func(v []byte) bool { return isNumber(v, 1, 1<<20) }, "a number of at least 1"},
}

// checkNixl returns the mistake in parameters of a transfer.
func checkNixl(given []byte) error {
	if !isObject(given) {
		return errors.New("kv_transfer_params is no object")
	}
	values := map[string][]byte{}
	err := openai.EachMember(given, func(name string, from, to int) { values[name] = openai.MemberValue(given[from:to]) })
	if err != nil {
		return errors.New(err.Message) // it was read before, so this cannot happen
	}

	older := isOneList(values["remote_block_ids"])
	for _, r := range required {
		value, ok := values[r.name]
		if !ok && r.newer && older {
			continue
		}
		if !ok {
			return fmt.Errorf("kv_transfer_params has no %s", r.name)
		}
		if !r.ok(value) {
			return fmt.Errorf("kv_transfer_params.%s is not %s", r.name, r.want)
		}
	}
	return nil
}

// isOneList reports whether a value is one list of block ids.
func isOneList(value []byte) bool {
	list, ok := bytes.CutPrefix(value, []byte("["))
	list = bytes.TrimLeft(list, whiteSpace)
	return ok && len(list) > 0 && list[0] != '['
}

const whiteSpace = " \t\r\n"

// hasBlocks reports whether a value is a list of block ids, or a list of such lists, with at least one id. The value is
// JSON. Ids are whole numbers, all of one depth.
func hasBlocks(value []byte) bool {
	if len(value) == 0 || value[0] != '[' {
		return false
	}
	depth, ids := 0, 0
	digits, level := 0, 0 // of the id that is read, and the depth of the first one
	for i, c := range value {
		isDigit := c >= '0' && c <= '9'
		if isDigit {
			digits++
			continue
		}
		if digits > 0 {
			ids++
			level = cmp.Or(level, depth)
		}
		isTooLarge := digits > len(maxID) || digits == len(maxID) && string(value[i-digits:i]) > maxID
		if isTooLarge || digits > 0 && depth != level {
			return false
		}
		digits = 0

		switch c {
		case '[':
			depth++
		case ']':
			depth--
		case ',', ' ', '\t', '\r', '\n':
		default:
			return false // null, a text, an object, or a number with a sign or a fraction
		}
		if depth > 2 {
			return false
		}
	}
	return depth == 0 && ids > 0
}

// maxID is the largest id of 63 bits.
const maxID = "9223372036854775807"
