// Package engine is the core of a simulated LLM engine: a scheduler with continuous batching
// and a paged KV cache, as vLLM has them, without the arithmetic of a model.
//
// It is told the time and told when a pass has ended; it computes nothing but which tokens
// would be computed when, what that leaves in the cache, and what the engine would say of
// it. It does no I/O and starts no goroutine, so that the same core serves in real time
// (workeragent/enginesim) and in virtual time, and so that equal inputs give equal outputs.
// It does not model several tiers, speculative decoding or data-parallel ranks.
//
// # One pass
//
// [Engine.Begin] plans a pass: first every running request, in order, gets its decode step or
// the next chunk of its prompt; then, if nobody had to be preempted, waiting requests are
// admitted first come, first served, up to MaxNumSeqs and the token budget. A request at the head
// of the queue that does not fit holds up those behind it. Blocks are taken, and old ones
// evicted, while planning, and the blocks that the pass will fill enter the prefix cache, so that a
// request which is admitted in the same pass finds those of one before it, as in vLLM.
// [Engine.End] makes it so: every request whose tokens are all computed emits one token, and what
// happened to the cache since Begin is returned as events, in order. The pass that ends a prompt
// emits its first token at no further cost: only requests that decode beside it add their step.
//
// # The cache
//
// A block is active while requests hold it. A full block of tokens is cached under
// the engine's hash of its chain; when nobody holds it any more it stays, inactive, until it
// is the least recently freed one and its space is needed. A request's blocks are freed last
// block first, so that chains lose their ends before their beginnings. Blocks that are not
// cached (partly filled, or equal to one that is) are used again first.
//
// # Concurrency
//
// An engine belongs to one goroutine.
package engine
