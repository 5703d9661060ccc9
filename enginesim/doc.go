// Package enginesim is a simulated vLLM server in real time: the HTTP API, the metrics and the KV events of
// vLLM, around the engine core of package sim/engine.
//
// For a gateway it is an engine like any other. It batches, queues, preempts, caches prefixes and evicts. Its
// passes take the time of its timing. It reports cached tokens and publishes the changes of its cache. Answers
// are words of the model's vocabulary without meaning. Each follows from the seed and the tokens before it, so a completion whose prompt is
// a prompt and the beginning of its answer, as token ids, has the rest of the answer.
// Nothing that needs a model is simulated: tools, structured output, log probabilities, stop strings. Such
// fields are accepted and ignored, as vLLM ignores unknown fields. Embeddings have the form that the request asks for: numbers,
// or their bytes in base64, of any length. Messages and Responses are answered without calls of tools, and responses are not stored.
//
// An answer has exactly the tokens that the request allows (max_tokens), and ends with the reason "length".
// Without max_tokens its length depends on the prompt, and it ends with the reason "stop". So a test chooses
// the numbers that it counts. Completions with echo begin with their prompt. With max_tokens 0 they are nothing
// else, and one token is counted that is not shown, as in vLLM. With Config.ThinkTokens the first tokens of an answer
// to a chat, a message or a response are thinking, apart from its text.
//
// # Life of an engine
//
//	state      event                           next state and effect
//	loading    StartDelay is over              ready
//	loading    any request                     loading; the answer is 503
//	ready      a request                       ready; its prompts join the queue of the core
//	ready      the context of Run ends         draining; no further requests are accepted
//	draining   the last request ends           stopped
//	draining   Config.Drain is over            stopped; the remaining requests are cut off
//
// # A request
//
// The handler parses a request, tokenizes its prompts and submits one sequence to the core for every answer. The
// goroutine of passes emits tokens into the choices of the request and wakes its handler, which writes them to
// the client. When the client leaves, the handler cancels its sequences.
//
// Each pass first publishes the events of its cache and then its tokens. So a client that has an answer finds
// the blocks of its prompt in every index that has read the events.
//
// # Resets and sleep
//
// The cache can be reset, and the engine can sleep: see sleep.go. As in vLLM, the event of a reset comes with the next pass, so an
// idle engine reports nothing.
//
// # Transfers of KV caches
//
// With Config.KVTransfer the engine transfers KV caches, by one of the handshakes of vLLM, SGLang and TensorRT-LLM. One engine
// computes the prompt of a request and keeps its blocks. Another one fetches them, from a side channel over HTTP, because there is
// nothing in them, but within the time of a real transfer. It checks that both prompts are equal.
//
//	kind       requests                  place of the blocks             a failed transfer
//	nixl       one after the other       in the first answer             is an error of the second request
//	p2p        both at once, any order   in the second request           has the second engine compute the prompt
//	bootstrap  both at once, any order   in both requests                is an error of both requests
//	context    one after the other       in the first answer, encoded    is an error of the second request
//
// Wrong members of requests have the answers of the real engine. Some of them end the engine, as they end vLLM. Blocks are kept
// for a bounded time, and no request waits longer for another engine than Config.TransferTimeout. After POST /lose_answer the next answer
// to a request whose prompt was fetched is 200 without a body, as some transports leave it.
//
// # The store of KV blocks
//
// With Config.KVStore the engine uses the store of its node beside its cache, as an engine does with a connector. Blocks have bytes
// there, which really move: kvstore.go fills them with their keys and compares them when they come back.
//
//	event                        effect
//	a pass has computed blocks   they are queued, and written into slots of host memory by a goroutine
//	a request comes              blocks that follow its cached ones are looked up; if loading them is faster than computing, they are
//	                             copied from host memory, and the core counts them as delivered
//	the store has or loses one   a KV event of that tier is published, like the events of the engine's cache
//	the store is away            the engine computes everything; its tiers are published as empty; it connects again every second
//
// A request waits at most five seconds for the store. Blocks for which there is no room are not written.
//
// # A cache outside engines
//
// With Config.Outside the engine loads the beginning of a prompt from that cache, as far as it has more of it than the engine, and counts
// it as cached. It stores each prompt there after its answer. Loads take no time.
//
// # Trust
//
// Bodies, queues, answers and replay buffers are bounded. The ZMQ library allocates the frame lengths that peers
// announce, so the event sockets must not be open to strangers. This is a tool for tests.
//
// # Concurrency
//
// [Sim.Run] owns every goroutine and waits for them. A mutex guards the core: one goroutine runs its passes, and
// handlers submit and cancel at the same time. A goroutine that owns the core and receives messages would need
// more CPU time, and this process shares its processors with the measured ones.
package enginesim
