package engines

import "github.com/stator-project/stator/internal/fleet"

// SGLang is SGLang. The role of a launch is its --disaggregation-mode. It counts tokens that it found in its cache at another time than
// the tokens of prompts, so neither is read.
var SGLang = &Kind{
	Name: "sglang", Page: "sglang",
	Dialect: SGLangEvents, Pages: SGLangPages, Transfer: fleet.TransferBootstrap,
	Metrics: Metrics{
		Running: "sglang:num_running_reqs", Waiting: "sglang:num_queue_reqs", Usage: "sglang:token_usage",
		Gaps: "sglang:inter_token_latency_seconds_count", GapTime: "sglang:inter_token_latency_seconds_sum",
		Capacity: "sglang:max_total_num_tokens", StepTokens: "sglang:spec_accept_length", Marker: "sglang:num_running_reqs",
	},
	Plan: Plan{
		BlockSize: 64, GPUs: "tp-size", Seqs: "max-running-requests", Batched: "chunked-prefill-size", Context: "context-length",
		Quantization: "quantization", KVType: "kv-cache-dtype", SmallKV: "kv-cache-dtype: fp8_e4m3",
	},
	Launch: Launch{
		Shape: ByOptions, Module: "sglang",
		Args: []string{
			"-m", "sglang.launch_server", "--model-path", "{path}", "--served-model-name", "{model}",
			"--host", "{host}", "--port", "{port}", "--page-size", "{blockSize}",
			"--enable-metrics", "--enable-cache-report", "--kv-events-config",
			`{"endpoint":"{endpoint}","publisher":"zmq","replay_endpoint":"{replay}","topic":"kv-events"}`,
		},
		RoleArgs: []string{"--disaggregation-mode", "{role}", "--disaggregation-bootstrap-port", "{transferPort}"},
		Env:      []string{"HF_HUB_OFFLINE=1"},
		Ranks:    []string{"dp-size", "dp", "data-parallel-size", "attn-dp-size", "attention-data-parallel-size"},
		// The options for attention and experts are not among them: they use the GPUs of tensor parallelism.
		GPUs: map[string]string{
			"tp-size": "tp", "tensor-parallel-size": "tensor", "pp-size": "pp-s", "pipeline-parallel-size": "pipeline",
			"dp-size": "dp", "data-parallel-size": "data-p",
		},
		SharesGPUs: "enable-dp-attention",
		Refused: map[string]string{
			"host":                          "stator agent --advertise-address sets it",
			"port":                          "stator agent --engine-ports sets it",
			"model-path":                    "use models[].path",
			"model":                         "use models[].path",
			"served-model-name":             "use models[].name",
			"page-size":                     "use models[].blockSize",
			"enable-metrics":                "the agent sets it",
			"enable-cache-report":           "the agent sets it",
			"kv-events-config":              "the agent sets it, to read the engine's KV events",
			"disable-radix-cache":           "the router needs the engine's prefix cache",
			"config":                        "write the options of that file into args",
			"grpc-mode":                     "routers reach engines by HTTP",
			"smg-grpc-mode":                 "routers reach engines by HTTP",
			"encoder-only":                  "routers send whole prompts",
			"nnodes":                        "an agent starts whole engines on its host",
			"node-rank":                     "an agent starts whole engines on its host",
			"disaggregation-mode":           "use launch[].role",
			"disaggregation-bootstrap-port": "stator agent --engine-ports sets it",
			"enable-pd-role-switch":         "the role of a worker is launch[].role",
		},
	},
	Remedies: Remedies{
		Caching: "start it without --disable-radix-cache",
		Events: "start it with --kv-events-config " +
			`'{"publisher": "zmq", "endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5558", "topic": "kv-events"}'`,
		Replay:    `add "replay_endpoint": "tcp://*:5558" to its --kv-events-config`,
		Metrics:   "start it with --enable-metrics",
		BlockSize: "start the engine with --page-size %d",
	},
}
