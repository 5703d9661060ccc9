package engines

// LlamaCPP is the server of llama.cpp.
var LlamaCPP = &Kind{
	Name: "llamacpp", Page: "llamacpp",
	Dialect: NoEvents, Pages: LlamaPages, AnyModelName: true,
	Metrics: Metrics{
		Running: "llamacpp:requests_processing", Waiting: "llamacpp:requests_deferred", Usage: "llamacpp:kv_cache_usage_ratio",
		Marker: "llamacpp:requests_processing",
	},
	Launch: Launch{Shape: Script, Module: "xllamacpp"},
	Remedies: Remedies{
		Events:  "remove kvEvents and kvReplay, because llama.cpp has no KV events",
		Metrics: "start it with --metrics",
	},
}
