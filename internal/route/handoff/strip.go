package handoff

import (
	"bytes"

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
// may have escapes and be repeated. All other members keep their bytes and their order. It calls see, unless it is nil, and returns an
// error as [Read] does.
func Strip(body []byte, see func(name string, value []byte)) (clean []byte, err *openai.Error) {
	found, err := readMembers(body, see)
	if !found || err != nil {
		return nil, err
	}
	return stripped(body), nil
}

// stripped returns a well-formed body without the members of transfers.
func stripped(body []byte) []byte {
	return appendStripped(make([]byte, 0, len(body)), body, holderLevels)
}

// hasTransfer reports whether a well-formed object has members of transfers, at its top level or in holders of so many levels.
func hasTransfer(object []byte, levels int) (found bool) {
	_ = openai.EachMember(object, func(name string, from, to int) {
		found = found || isTransfer(name, object[from:to], levels)
	})
	return found
}

// isTransfer reports whether a member is one of transfers, or a holder with one.
func isTransfer(name string, member []byte, levels int) bool {
	if transfer[name] {
		return true
	}
	if levels == 0 || !holders[name] {
		return false
	}
	value := openai.MemberValue(member)
	return isObject(value) && hasTransfer(value, levels-1)
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
		value := openai.MemberValue(member)
		if levels == 0 || !holders[name] || !isObject(value) {
			dst = append(dst, member...)
			return
		}
		dst = append(dst, bytes.TrimSuffix(member, value)...)
		dst = appendStripped(dst, value, levels-1)
	})
	return append(dst, '}')
}
