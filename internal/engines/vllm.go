package engines

import "github.com/stator-project/stator/internal/fleet"

// VLLM is vLLM.
var VLLM = &Kind{
	Name: "vllm", Page: "vllm",
	Dialect: VLLMEvents, Pages: VLLMPages, Metrics: vllmMetrics, AdapterPath: vllmAdapterPath, VLLMRules: true,
	Transfer: fleet.TransferNixl, Connectors: true, TokenIDs: true, RankIgnored: vllmRankIgnored,
	Plan: Plan{
		BlockSize: 16, GPUs: "tensor-parallel-size", Seqs: "max-num-seqs", Batched: "max-num-batched-tokens", Context: "max-model-len",
		Quantization: "quantization", KVType: "kv-cache-dtype", SmallKV: "kv-cache-dtype: fp8",
		Half: "kv-transfer-config: {kv_connector: NixlConnector, kv_role: kv_both}",
	},
	Launch: Launch{
		Shape: ByOptions, Module: "vllm",
		Args: []string{
			"-m", "vllm.entrypoints.openai.api_server", "--model", "{path}", "--served-model-name", "{model}", "{aliases}",
			"--host", "{host}", "--port", "{port}", "--block-size", "{blockSize}",
			"--enable-prefix-caching", "--enable-prompt-tokens-details", "--kv-events-config",
			`{"enable_kv_cache_events":true,"endpoint":"{endpoint}","publisher":"zmq","replay_endpoint":"{replay}","topic":"kv-events"}`,
		},
		Env:   []string{"HF_HUB_OFFLINE=1", "VLLM_NO_USAGE_STATS=1", "DO_NOT_TRACK=1"},
		Ranks: []string{"data-parallel-size"},
		// The context-parallel option for decoding is not among them: it uses the GPUs of tensor parallelism.
		GPUs: map[string]string{
			"tensor-parallel-size": "tensor", "pipeline-parallel-size": "pipeline", "prefill-context-parallel-size": "prefill-c",
			"data-parallel-size": "data-parallel-size",
		},
		Refused: map[string]string{
			"host":                      "stator agent --advertise-address sets it",
			"port":                      "stator agent --engine-ports sets it",
			"uds":                       "routers reach engines by IP and port",
			"model":                     "use models[].path",
			"served-model-name":         "use models[].name and models[].aliases",
			"block-size":                "use models[].blockSize",
			"kv-events-config":          "the agent sets it, to read the engine's KV events",
			"enable-prefix-caching":     "the agent sets it",
			"no-enable-prefix-caching":  "the router needs the engine's prefix cache",
			"config":                    "write the options of that file into args",
			"headless":                  "an agent starts whole engines",
			"data-parallel-rank":        allRanks,
			"data-parallel-start-rank":  allRanks,
			"data-parallel-size-local":  allRanks,
			"data-parallel-address":     allRanks,
			"data-parallel-hybrid-lb":   "the router chooses the rank",
			"data-parallel-external-lb": "the router chooses the rank",
		},
	},
	Remedies: vllmRemedies,
}

const allRanks = "use data-parallel-size: an agent starts all ranks of an engine on its host"

// vllmAdapterPath needs --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True.
const vllmAdapterPath = "/v1/load_lora_adapter"

// vllmRankIgnored: of all APIs that generate, responses alone does not pass the rank of the header X-data-parallel-rank on to the engine
// core (vLLM 0.32, vllm/entrypoints/openai/responses/serving.py).
var vllmRankIgnored = []string{"responses"}

// vllmMetrics are the metrics of vLLM, which counts the tokens that KV connectors find apart from its own hits.
var vllmMetrics = Metrics{
	Running: "vllm:num_requests_running", Waiting: "vllm:num_requests_waiting", Usage: "vllm:kv_cache_usage_perc",
	Queries: "vllm:prefix_cache_queries_total", Hits: "vllm:prefix_cache_hits_total", ExternalHits: "vllm:external_prefix_cache_hits_total",
	Gaps: "vllm:inter_token_latency_seconds_count", GapTime: "vllm:inter_token_latency_seconds_sum",
	Config: "vllm:cache_config_info",
	Drafts: "vllm:spec_decode_num_drafts_total", Accepted: "vllm:spec_decode_num_accepted_tokens_total",
	SleepState: "vllm:engine_sleep_state", Marker: "vllm:num_requests_running",
}

// vllmRemedies are the remedies for vLLM, and for kinds whose options are vLLM's or not known.
var vllmRemedies = Remedies{
	Caching: "start it with --enable-prefix-caching",
	Events: "start it with --kv-events-config " +
		`'{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5558"}'`,
	Replay:    `add "replay_endpoint": "tcp://*:5558" to its --kv-events-config`,
	Metrics:   "start it without --disable-log-stats",
	BlockSize: "start the engine with --block-size %d",
}
