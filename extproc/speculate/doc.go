// Package speculate has the prefix of a conversation's next turn computed when a turn has ended, so that the next one finds it cached.
//
// A worker keeps the prompt and the answer in its cache, as it has computed them. The next prompt often differs after the first prompt:
// chat templates leave out the thinking of earlier turns, and write calls of tools otherwise than the model has. Without this package the
// worker computes the answer once more when the client waits for its next one.
//
// # A turn
//
//	event                                            effect
//	a client asks for it, and the answer begins      a [Turn] keeps the body, and reads the answer as the client gets it
//	the answer ends with a reason                    the turn waits for one of a fixed number of goroutines
//	the answer breaks off, or is an error            nothing is sent or counted
//	it is longer than MaxAnswer, or memory is short  nothing is sent; counted as no_room
//	too many turns wait                              nothing is sent; counted as dropped
//	the session's next request is decided            nothing is sent, or it is stopped: dropped, cancelled
//
// # The APIs
//
// Each API has its own form of answers and of the list that a client sends. A form reads an answer, and writes the elements that the next
// request has more. They are parsed and rendered as a client's are, so that this package has no rule of how an API becomes a chat.
//
//	API        an answer                   its end                           thinking in the first answer
//	chat       one message                 finish_reason                     is not sent back
//	messages   a list of content blocks    stop_reason                       is sent back
//	responses  a list of output items      status of the last event          is sent back
//
// Completions have no turns. Embeddings have no answer.
//
// # The prefix
//
// The next turn's messages are the request's, the answer, and a message that is not known yet: a user's, or a tool's result. The
// prompt is made twice, with two different texts of it. The tokens that both have in common are certain, and the whole blocks of these are
// sent. The answer has its thinking if the client has sent back thinking of earlier answers.
//
// # A speculative prefill
//
// It is a completion of these tokens with one token of an answer, at an idle rank: see [route.Router.Speculate]. Requests of clients go
// first. When one is picked for the rank, by this router or by another, the connection is closed, and the engine stops. The blocks that it
// has computed until then stay in its cache.
//
// The order of steps makes sure that no request of a client waits for one. The prefill is booked first, then registered, and then the
// rank is looked at again. A request that is booked on the rank before the registration is found by that look. One that is booked later
// finds the registration: [Sender.Decided] is called for each decision, and stops the prefill at its rank.
//
// The session's next request stops its own prefill at any rank, because it computes the same prompt. Decided marks the turn for that, and
// the registration finds the mark under the same lock.
//
// A prefill that is stopped ends its booking with Left. The router takes its predictions back, because it is not known how much of the
// prompt was computed, and learns nothing about the health of the worker.
//
// # What Dynamo does
//
// Dynamo's frontend has the same hint. It renders the messages with the answer at their end, sends the prompt through its own router, and
// stops it for no other request. Templates such as that for Qwen3 write the last answer of a conversation otherwise than an earlier one, so
// that the prefix here is made with a message after the answer.
//
// # Bounds
//
// A turn reserves its body and its texts in a budget. At most maxWaiting turns wait, and workers of them are sent at a time, at most one to
// a rank, each for at most sendWithin.
//
// A Sender is safe for concurrent use. A Turn belongs to one goroutine until its End.
package speculate
