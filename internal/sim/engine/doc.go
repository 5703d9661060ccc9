// Package engine is the core of a simulated LLM engine: a scheduler with continuous batching
// and a paged KV cache, as vLLM has them, without the arithmetic of a model.
//
// The caller passes the time, and ends each pass. The engine computes which tokens are computed when, how this
// changes the cache, and which events the engine would publish. It does no I/O and starts no goroutine. So the
// same core serves in real time (enginesim) and in virtual time (sim), and equal inputs have equal outputs. It
// does not model speculative decoding or data-parallel ranks.
//
// # One pass
//
// [Engine.Begin] plans a pass. First every running request, in order, gets its decode step or the next chunk of
// its prompt. Then, if no request was preempted, waiting requests are admitted in order of arrival, up to
// MaxNumSeqs and the token budget. A request at the head of the queue that does not fit blocks the requests
// behind it. Planning allocates blocks and evicts old ones. The blocks that the pass is going to fill enter the
// prefix cache at once, so a request that is admitted in the same pass finds the blocks of an earlier one, as
// in vLLM.
//
// [Engine.End] ends the pass. Every request whose tokens are all computed emits one token, and the changes of
// the cache since Begin are returned as events, in order. The pass that ends a prompt emits its first token at
// no further cost. Only requests that decode in the same pass add their step.
//
// # States of a request
//
//	state     event                           next state
//	fresh     Submit                          waiting
//	waiting   Begin admits it                 running, or loading if its first blocks come from a tier
//	loading   Begin, when they are there      running
//	waiting   Cancel                          done
//	loading   Cancel                          done
//	running   Begin preempts it               waiting, at the head of the queue, without its blocks
//	running   End emits its last token        done
//	running   Cancel                          done
//
// # The cache
//
// A block is active while requests use it. A full block of tokens is cached under the engine's hash of its
// chain. When no request uses it, it stays cached until it is the least recently freed block and its space is
// needed. The blocks of a request are freed from the last to the first, so that chains lose their ends before
// their beginnings. Blocks that are not cached (partly filled, or equal to a cached one) are reused first.
//
// # Tiers
//
// Behind the cache there may be others ([Tier]): host memory, a disk, an object store. Computed blocks are copied to the first of
// them, and blocks are loaded where that is faster than to compute them.
//
// # Concurrency
//
// An engine belongs to one goroutine.
package engine
