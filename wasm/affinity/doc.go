// Package affinity computes a key from the beginning of the prompt in a request body, so that all turns of one
// conversation have the same key. The Wasm filter in package filter sends requests by it while no router decides.
//
// # Parts of the key
//
//	body                     read
//	chat completions         model; messages up to and with the first that is not of the role system or developer
//	Anthropic messages       model, system, and messages as above
//	responses                model, instructions; input, which is a text, or items as above
//	completions, tokenize    model; the first 1,024 bytes of prompt, as text or as token ids
//
// Of a message the role and the content count. White space between values, the order of the members, cache_control and
// all other members do not, because clients change them between turns. Texts count as they are written: an escaped
// character differs from the same one without an escape.
//
// # Bounds
//
// At most [Limit] bytes of a body are read, and a [Scanner] keeps about 200 bytes of state. Members that come after the
// limit are not part of the key. So if a client writes the model after the messages, the key of a conversation changes
// once: when its body grows beyond the limit.
//
// The package is pure, and part of a module that runs inside Envoy: it imports only what Go's runtime has anyway, because
// each further package makes that module larger.
package affinity
