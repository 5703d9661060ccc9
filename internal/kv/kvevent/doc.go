// Package kvevent is what engines say of their KV caches: every dialect in, one vocabulary out.
//
// An engine reports blocks it stored, removed or cleared. A [Dialect]'s decoder turns one
// message into a [Batch]; the batch carries content hashes (package blockhash), not
// token ids, so that it can leave the host. [AppendVLLM] is the other direction, for
// simulated engines. The package does not order batches or detect gaps: that is package
// feed's.
//
// # What a batch remembers
//
// Engines say two things once and rely on them later: a cache salt, which vLLM names only
// with the first block of a prompt although it tells all later ones apart, and the kind of
// an attention group, which it names when it stores and not when it removes. A Batch keeps
// both between messages, in bounded memory, and forgets the salts when its rank is cleared.
// Without that memory a salted prompt could be found only up to the end of its first
// chunk, and a window that slid on would look like an eviction.
//
// # Concurrency
//
// A batch belongs to one goroutine. Functions share nothing.
//
// # Safety
//
// The bytes come from outside. Decoders bound what they read (see [Limits]), never panic,
// and return an error that says what is wrong with the message. Unknown fields are
// skipped; unknown kinds of event are counted in [Batch.Unknown] and skipped.
package kvevent
