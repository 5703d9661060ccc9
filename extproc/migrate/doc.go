// Package migrate continues the stream of an answer at another worker after its own has failed, so that the client gets one stream. It
// does no I/O: bodies and events in, bodies and events out. Package relay sends the requests.
//
// # Which streams
//
// [Read] promises to continue a stream or has the reason why not. An exact promise is for greedy answers: the continuation has the tokens
// that the worker would have made, if engines compute the same for the same tokens. A sampled promise is for all other temperatures: the
// continuation has the distribution of the model, and not the tokens. Both need a request whose next token depends on the tokens before it
// alone, so members of the body that are not known to be harmless end the promise.
//
// # How a stream goes on
//
// The engine returns the ids of the prompt in the first event, and those of each event's tokens (vLLM's return_token_ids, which [Request]
// adds). A [Stream] reads them as the events pass, and removes them unless the client has asked for them:
//
//	an event                                   the stream
//	has ids of tokens, and text                is passed on, and the ids are kept
//	is an error, or has finish_reason "abort"  is broken: the event is not passed on
//	has text without ids, or another delta     is passed on, and loses the promise
//	is no JSON, or larger than MaxEvent        is passed on, and loses the promise
//	data: [DONE]                               has ended
//
// After a failure, [Stream.Body] is a completion whose prompt is the ids of the prompt and of the tokens so far, with the rest of
// max_tokens. Its events get the form of the first ones: id, model, created, and a chat's delta. Usage counts the whole.
//
// # Where a stream is cut
//
// An engine holds text back while a character is incomplete, so the client may have ids whose text it does not have. A prompt that ends
// inside a character has engines write its text again. The continuation therefore begins behind the last safe token: an event had one id,
// and its text was not empty and did not end with U+FFFD, so all text before it was written. Tokens after it are computed again. Their ids
// must be those that the first worker made, and their text is not written twice. A sampled stream would differ there, so each event with
// such text is safe in it.
//
// # Bounds
//
// An event has at most [MaxEvent] bytes. Ids take 4 bytes each in a budget of all streams, [Memory], and so do events above 4 KiB. A stream
// for which there is no room loses its promise and goes on. The form of its events, by which it reads most of them fast, takes at most
// 1 KiB more.
//
// A Stream and its Events belong to one goroutine.
package migrate
