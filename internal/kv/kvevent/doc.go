// Package kvevent decodes engines' events about their KV caches: from every dialect into one vocabulary.
//
// An engine reports blocks that it stored, removed or cleared. A [Dialect]'s decoder turns one message into a
// [Batch]. The batch has content hashes (package blockhash) and no token ids, so that prompts do not leave
// the host. [AppendVLLM] encodes, for simulated engines. The package does not order batches or detect gaps;
// package feed does.
//
// # Memory between messages
//
// Engines report two things once that later events depend on. vLLM names a cache salt only with the first
// block of a prompt, although it changes the hashes of all later blocks. And it names the kind of an
// attention group when it stores blocks, not when it removes them. A Batch keeps both between messages, in
// bounded memory, and drops the salts when its rank is cleared. Without this memory a salted prompt would be
// found only up to the end of its first message, and a window that moves on would look like an eviction.
//
// # Concurrency
//
// A batch belongs to one goroutine. Functions share no state.
//
// # Safety
//
// The bytes come from outside. Decoders bound what they read (see [Limits]), never panic, and return an error
// that describes the mistake in the message. They skip unknown fields, and count unknown kinds of event in
// [Batch.Unknown].
package kvevent
