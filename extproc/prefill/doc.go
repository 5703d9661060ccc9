// Package prefill has prefill workers compute the prompts of requests that decode workers answer. It sends the requests to prefill
// workers, over HTTP; Envoy, or package relay, sends the decode worker its own.
//
// Package handoff makes the bodies. There are two orders:
//
//	transfers         order                                       function
//	nixl, context     the decode worker needs members of the      Sender.Compute waits for it, and returns the decode worker's
//	                    prefill worker's answer                     body
//	p2p, bootstrap    both workers need their requests at once    Sender.Begin returns the decode worker's body at once, and
//	                                                                a Leg that ends later
//
// Where decode workers have sidecars that send the requests, Sender.Name chooses the prefill worker, and sends nothing: outcome named.
//
// A request to a prefill worker has one of these outcomes:
//
//	answer of the prefill worker           outcome       then
//	the members of the transfer            transferred   the decode worker fetches the prompt's KV cache
//	none: a connection failed              unreachable   another prefill worker
//	200 without these members              unusable      another prefill worker
//	status 5xx                             failed        another prefill worker
//	any other status                       refused       the decode worker receives the client's body, and finds the same fault
//	a first token that ends the answer     finished      the decode worker receives the client's body (TensorRT-LLM)
//	none in time                           timed_out     the decode worker receives the client's body
//	none: the client has left              cancelled     -
//	(no worker is ready, free, in time)    no_worker     the decode worker receives the client's body
//
// An answer is in time if it comes within a multiple of the time that prompts of the same length have taken lately, and a floor; with
// SGLang, whose prefill workers wait for decode workers, within the timeout. A worker whose answer was not in time gets no request for a
// while, whatever its health page answers.
//
// A transfer may fail without an error: then the decode worker's answer has no token. [Sender.Answered] is called at the end of answers,
// and two workers with such an answer get no request together for a while.
//
// A decode worker that receives the client's body computes the prompt by itself. Every prefill worker is asked at most once, and
// at most MaxWorkers of them are. The request to a prefill worker is cancelled when its context ends. Each has a booking, which
// ends with it.
//
// All methods are safe for concurrent use.
package prefill
