package engines

import "github.com/stator-project/stator/internal/fleet"

// TRTLLM is the trtllm-serve of TensorRT-LLM. A role needs no option but those in the file: the requests of a router decide which half an
// engine computes.
//
// It has the time of an output token as one mean for each request, which is no gap between tokens. Its /metrics is not read: an
// answer removes the statistics from the engine.
var TRTLLM = &Kind{
	Name: "trtllm", Page: "tensorrt-llm",
	Dialect: TRTLLMEvents, Pages: TRTLLMPages, Transfer: fleet.TransferContext,
	Metrics: Metrics{
		Running: "trtllm_num_requests_running", Waiting: "trtllm_num_requests_waiting", Usage: "trtllm_kv_cache_utilization",
		Blocks: "trtllm_kv_cache_max_blocks", BlockSize: "trtllm_kv_cache_tokens_per_block", Path: "/prometheus/metrics",
	},
	Plan: Plan{
		BlockSize: 32, GPUs: "tp-size", Seqs: "max-batch-size", Batched: "max-num-tokens", Context: "max-seq-len",
		SmallKV: "options: {kv_cache_config: {dtype: fp8}}",
	},
	Launch: Launch{
		Shape: ByOptions, Module: "tensorrt_llm",
		Args: []string{
			"-m", "tensorrt_llm.commands.serve", "serve", "{path}", "--host", "{host}", "--port", "{port}",
			"--extra_llm_api_options", "{file}",
		},
		Env:         []string{"HF_HUB_OFFLINE=1"},
		Underscores: true, OptionsInFile: true,
		GPUs: map[string]string{
			"tp-size": "tp-size", "tensor-parallel-size": "tensor-parallel-size", "pp-size": "pp-size",
			"pipeline-parallel-size": "pipeline-parallel-size", "cp-size": "cp-size", "context-parallel-size": "context-parallel-size",
		},
		Refused: map[string]string{
			"host":                        "stator agent --advertise-address sets it",
			"port":                        "stator agent --engine-ports sets it",
			"config":                      "write the members of that file into args.options",
			"extra_llm_api_options":       "write the members of that file into args.options",
			"grpc":                        "routers reach engines by HTTP",
			"server_role":                 "use launch[].role",
			"metadata_server_config_file": "routers find engines by the bus",
			"disagg_cluster_uri":          "routers send requests to both halves themselves",
		},
	},
	Remedies: Remedies{
		Caching: "set kv_cache_config.enable_block_reuse to true in the file of its --extra_llm_api_options",
		Events: "set kv_cache_config.event_buffer_max_size to 16384 in the file of its --extra_llm_api_options, with " +
			"kv_cache_config.enable_block_reuse; and check that nothing else reads /kv_cache_events",
		BlockSize: "set kv_cache_config.tokens_per_block to %d in the file of its --extra_llm_api_options",
	},
}
