package engines

// Acme is Acme's engine. It publishes vLLM's events, and does not transfer KV caches.
var Acme = &Kind{
	Name:    "acme",
	Dialect: VLLMEvents, Pages: OpenAIPages,
	Metrics: Metrics{Running: "acme_running", Waiting: "acme_waiting", Usage: "acme_kv_usage", Marker: "acme_running"},
	Plan:    Plan{BlockSize: 32, GPUs: "gpus", Seqs: "max-requests", Batched: "max-tokens", Context: "max-length"},
	Launch: Launch{
		Shape: ByOptions, Module: "acme",
		Args: []string{
			"-m", "acme.serve", "--model", "{path}", "--name", "{model}", "--host", "{host}", "--port", "{port}",
			"--block-size", "{blockSize}", "--events", "{endpoint}", "--replay", "{replay}",
		},
		GPUs: map[string]string{"gpus": "gpus"},
		Refused: map[string]string{
			"model": "use models[].path", "name": "use models[].name", "host": "stator agent --advertise-address sets it",
			"port": "stator agent --engine-ports sets it", "block-size": "use models[].blockSize",
			"events": "the agent sets it", "replay": "the agent sets it",
		},
	},
	Remedies: Remedies{Events: "start it with --events and --replay", Metrics: "start it with --metrics"},
}
