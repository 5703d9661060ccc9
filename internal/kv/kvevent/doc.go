// Package kvevent is what engines say of their KV caches: every dialect in, one vocabulary out.
//
// An engine reports blocks it stored, removed or cleared. A decoder turns one message of
// its dialect into a [Batch]; the batch carries content hashes (package blockhash), not
// token ids, so that it can leave the host. The package does not order batches, detect
// gaps or keep state between them: that is package feed's.
//
// # Safety
//
// The bytes come from outside. Decoders bound what they read (see [Limits]), never panic,
// and return an error that says what is wrong with the message. Unknown fields are
// skipped; unknown kinds of event are counted in [Batch.Unknown] and skipped.
package kvevent
