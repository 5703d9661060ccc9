package handoff

import (
	"bytes"
	"unicode/utf8"

	"github.com/stator-project/stator/internal/prompt/openai"
)

// transfer are the members of request bodies that engines use to transfer KV caches, or to choose the rank that computes.
var transfer = map[string]bool{
	// vLLM: KV caches, and the outputs of encoders.
	"kv_transfer_params": true,
	"ec_transfer_params": true,
	// TensorRT-LLM.
	"disaggregated_params": true,
	// SGLang: the place of the prefill, and the ranks of both engines.
	"bootstrap_host":         true,
	"bootstrap_port":         true,
	"bootstrap_room":         true,
	"bootstrap_pair_key":     true,
	"decode_tp_size":         true,
	"routed_dp_rank":         true,
	"disagg_prefill_dp_rank": true,
	"data_parallel_rank":     true,
}

// holders are the members whose objects vLLM copies to the place where it reads members of transfers: "vllm_xargs", and
// "extra_args" in the "sampling_params" of /inference/v1/generate.
var holders = map[string]bool{"vllm_xargs": true, "sampling_params": true, "extra_args": true}

// holderLevels is the nesting depth of holders.
const holderLevels = 2

// Strip returns a body without the members of transfers at its top level and in holders, in new memory; nil if it has none. Names
// may have escapes and be repeated. All other members keep their bytes and their order. It returns an error for a body that is not
// one JSON object in UTF-8 without a byte order mark, or that nests too deeply: an engine might read what is not found here.
// Python's decoder, for example, accepts UTF-16 and byte order marks.
func Strip(body []byte) (clean []byte, err *openai.Error) {
	if !isObject(body) || !utf8.Valid(body) {
		return nil, openai.Invalid("", "invalid_json",
			"The request body is not a JSON object in UTF-8 without a byte order mark. Send one.")
	}

	found, err := hasTransfer(body, holderLevels)
	if !found || err != nil {
		return nil, err
	}
	return appendStripped(make([]byte, 0, len(body)), body, holderLevels), nil
}

// hasTransfer reports whether an object has members of transfers, at its top level or in holders of so many levels.
func hasTransfer(object []byte, levels int) (found bool, err *openai.Error) {
	err = openai.EachMember(object, func(name string, from, to int) {
		switch {
		case found:
		case transfer[name]:
			found = true
		case levels > 0 && holders[name]:
			if value := valueOf(object[from:to]); isObject(value) {
				found, _ = hasTransfer(value, levels-1) // it was read already
			}
		}
	})
	return found, err
}

// appendStripped appends an object without members of transfers. The object is well formed.
func appendStripped(dst, object []byte, levels int) []byte {
	dst = append(dst, '{')
	begin := len(dst)
	_ = openai.EachMember(object, func(name string, from, to int) {
		if transfer[name] {
			return
		}
		if len(dst) > begin {
			dst = append(dst, ',')
		}

		member := object[from:to]
		value := valueOf(member)
		if levels == 0 || !holders[name] || !isObject(value) {
			dst = append(dst, member...)
			return
		}
		dst = append(dst, bytes.TrimSuffix(member, value)...)
		dst = appendStripped(dst, value, levels-1)
	})
	return append(dst, '}')
}
