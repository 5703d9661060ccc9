package handoff

import "github.com/stator-project/stator/internal/prompt/openai"

// transfer are the members of request bodies that engines use to transfer KV caches, or to choose the rank that computes.
var transfer = map[string]bool{
	// vLLM: KV caches, and the outputs of encoders.
	"kv_transfer_params": true,
	"ec_transfer_params": true,

	// TensorRT-LLM.
	"disaggregated_params": true,

	// SGLang: where the prefill is, and the ranks of both engines.
	"bootstrap_host":         true,
	"bootstrap_port":         true,
	"bootstrap_room":         true,
	"routed_dp_rank":         true,
	"disagg_prefill_dp_rank": true,
	"data_parallel_rank":     true,
}

// Strip returns a body without the members of transfers at its top level, in new memory; nil where it has none. Names may have
// escapes and be repeated. All other members keep their bytes and their order. It returns an error for a JSON object that
// is malformed or nests too deeply: an engine might read what is not found here.
func Strip(body []byte) (clean []byte, err *openai.Error) {
	found := false
	err = openai.EachMember(body, func(name string, _, _ int) { found = found || transfer[name] })
	if !found || err != nil {
		return nil, err
	}

	clean = append(make([]byte, 0, len(body)), '{')
	_ = openai.EachMember(body, func(name string, from, to int) {
		if transfer[name] {
			return
		}
		if len(clean) > 1 {
			clean = append(clean, ',')
		}
		clean = append(clean, body[from:to]...)
	})
	return append(clean, '}'), nil
}
