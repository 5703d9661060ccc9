package engines

// Dynamo is the frontend of one worker of NVIDIA Dynamo. The worker publishes vLLM's events.
//
// The frontend counts the tokens of a prompt at its first token and those found in the cache at its end, so between two readings they
// belong to different requests, and neither is read.
var Dynamo = &Kind{
	Name: "dynamo", Page: "dynamo",
	Dialect: VLLMEvents, Pages: DynamoPages, HealthOfModel: true,
	Metrics: Metrics{
		Running: "dynamo_frontend_inflight_requests", Waiting: "dynamo_frontend_queued_requests", RunningHasWaiting: true,
		Gaps:    "dynamo_frontend_inter_token_latency_seconds_count",
		GapTime: "dynamo_frontend_inter_token_latency_seconds_sum",
		Blocks:  "dynamo_frontend_model_total_kv_blocks", BlockSize: "dynamo_frontend_model_kv_cache_block_size",
		Marker: "dynamo_frontend_model_total_kv_blocks",
	},
	Remedies: Remedies{
		Events: "start dynamo.vllm with --kv-events-config " +
			`'{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5558"}', ` +
			"and dynamo.mocker with --zmq-kv-events-ports and --zmq-replay-ports",
		Metrics:   "check that the address is that of a frontend, and not of a worker's DYN_SYSTEM_PORT",
		BlockSize: "start the worker with --block-size %d",
		Socket: "compare the port with the worker's --zmq-kv-events-ports or --kv-events-config: the socket is that of the worker, and " +
			"the frontend has none",
	},
}
