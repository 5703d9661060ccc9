// Package enginesim is a simulated vLLM: its HTTP API, its metrics and its KV events, in real
// time, around the engine core of package sim/engine.
//
// To a gateway it is an engine like any other: it batches, queues, preempts, caches prefixes
// and evicts, takes as long as its timing says, reports cached tokens, and publishes what its
// cache goes through. Its answers are words of the model's vocabulary, the same for the same
// seed, prompt and place, and mean nothing. It does not do what needs a model: tools,
// structured output, log probabilities, stop strings; such fields are accepted and ignored,
// as vLLM ignores what it does not know.
//
// An answer has exactly the tokens that the request allows (max_tokens) and ends by
// "length"; without that it ends by "stop" after a length that depends on the prompt, so that
// a test can ask for what it wants to count.
//
// # Trust
//
// Bodies, queues, answers and replay buffers are bounded. The ZMQ sockets believe the lengths
// that their peers announce, as it is a tool for tests: bind them where nobody else connects.
//
// # Concurrency
//
// [Sim.Run] owns every goroutine and waits for them. The engine is guarded by a mutex: one
// goroutine runs its passes, and handlers submit and cancel beside it. That is cheaper than a
// goroutine they all talk to, and this process shares its processors with what is measured.
package enginesim
