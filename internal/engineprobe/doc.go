// Package engineprobe asks engines over HTTP for what their metrics and lists report: health, load, the capacity of the KV
// cache, the context length, and options.
//
// Agents ask the engines that they start, and routers and control planes the engines that a configuration lists. vLLM,
// SGLang and the simulated engine list their max_model_len at /v1/models; llama.cpp does not. Answers are hostile: each
// is bounded in bytes, and each figure in its range.
//
// # Concurrency
//
// A [Probe] is for one goroutine at a time. The functions keep no state and are safe for concurrent use.
package engineprobe
