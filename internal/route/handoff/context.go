package handoff

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
)

// The functions of this file are for TensorRT-LLM's trtllm-serve, whose members of requests are in its openai_protocol.py. The
// router sends a request twice, one after the other:
//
//	to        body                                               answer
//	context   "disaggregated_params" of type "context_only"      choices[0].disaggregated_params, and prompt_token_ids
//	decode    these of type "generation_only", and the prompt's  the client's
//	          token ids
//
// Ids are numbers above 2^53, so they are copied as text.

const contextParams = "disaggregated_params"

// prefillContext appends the request of a context server.
func (t *Transfer) prefillContext(dst, body []byte) ([]byte, error) {
	add := `"stream":false,"` + contextParams + `":{"request_type":"context_only","disagg_request_id":` + t.decimalID() + `}`
	return splice(dst, body, drops(streams), add)
}

func (t *Transfer) decimalID() string { return strconv.FormatInt(t.ID, 10) }

// ErrFinished means that the prefill worker's first token has ended the answer, so that there is nothing to decode.
var ErrFinished = errors.New("the first token of the prefill worker has ended the answer")

// decodeContext appends the request of a generation server, with the parameters that a context server has answered.
func (t *Transfer) decodeContext(dst, body, answer []byte) ([]byte, error) {
	values, err := members(answer, "choices", "prompt_token_ids")
	if err != nil {
		return dst, fmt.Errorf("the answer of the prefill worker is no JSON object: %w", err)
	}
	given, err := contextOf(values["choices"])
	if err != nil {
		return dst, err
	}

	add := []byte(`"` + contextParams + `":`)
	own := map[string]bool{"request_type": true, "disagg_request_id": true}
	add, err = splice(add, given, drops(own), `"request_type":"generation_only","disagg_request_id":`+t.decimalID())
	if err != nil {
		return dst, err
	}
	drop := transfer
	if ids := values["prompt_token_ids"]; isTokens(ids) {
		name := "prompt_token_ids"
		if t.Endpoint == Completions {
			name = "prompt"
		}
		add = append(append(add, `,"`+name+`":`...), ids...)
		drop = union(transfer, map[string]bool{name: true})
	}
	return splice(dst, body, drops(drop), string(add))
}

// contextOf returns the parameters in the choices of a context server's answer.
func contextOf(choices []byte) ([]byte, error) {
	var list []json.RawMessage
	if json.Unmarshal(choices, &list) != nil || len(list) != 1 {
		return nil, ErrNoTransfer
	}
	values, err := members(list[0], contextParams, "finish_reason")
	if err != nil {
		return nil, ErrNoTransfer
	}
	// Only these reasons leave something to decode. An answer that has ended may have no parameters.
	reason := string(values["finish_reason"])
	switch {
	case isText(values["finish_reason"]) && reason != `"length"` && reason != `"not_finished"`:
		return nil, ErrFinished
	case isNull(values[contextParams]) || !isText(values["finish_reason"]):
		return nil, ErrNoTransfer
	}

	given := values[contextParams]
	parts, err := members(given, "ctx_request_id", "first_gen_tokens")
	switch {
	case err != nil:
		return nil, fmt.Errorf("the answer of the prefill worker: %s is no object", contextParams)
	case !isNumber(parts["ctx_request_id"], 0, 1<<63-1):
		return nil, fmt.Errorf("the answer of the prefill worker: %s.ctx_request_id is not a number", contextParams)
	case !isTokens(parts["first_gen_tokens"]):
		return nil, fmt.Errorf("the answer of the prefill worker: %s.first_gen_tokens is not a list of token ids", contextParams)
	}
	return given, nil
}

// isTokens reports whether a value is a list of at least one token id.
func isTokens(value []byte) bool {
	var ids []*uint32
	if len(value) == 0 || json.Unmarshal(value, &ids) != nil {
		return false
	}
	for _, id := range ids {
		if id == nil {
			return false
		}
	}
	return len(ids) > 0
}
