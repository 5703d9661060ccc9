// Package relay is an upstream of Envoy for requests that may need more than one engine, or a second attempt with another body. Envoy
// sends a request once more with the body that it has, and to one address. Routers name the relay as the address of requests whose
// two legs must be sent at once, as the next address if a prompt is computed by another worker than the one that answers, and as the
// address of streams that may be continued. All other requests never come here.
//
//	event                                        the relay
//	a request                                    sends it to a decode worker, and beside it to a prefill worker
//	the prefill worker fails before the answer,  stops the attempt, and makes another one
//	  or is down before the prompt is fetched
//	the decode worker fails before its answer,   makes another attempt, at another worker,
//	  or answers 500, 502, 503 or 504              or at the same one, if there is no other: it computes the prompt
//	the answer begins                            forwards it as it comes
//	the answer breaks off                        breaks off, too; a stream of events ends with an error, or is continued
//	the client leaves                            stops both legs
//
// # Streams
//
// Of a stream of events the client gets whole events. One whose promise holds is continued after a failure, see package migrate: the
// booking of the worker ends as cut off, the rest is decided like another request, and the stream waits for the next worker. The
// headers of such a stream are sent with its first event, so a worker that fails before it is replaced by another attempt. The relay
// reads from a worker only after the client has taken the events before.
//
// # Attempts
//
// An answer with an error, of an engine or of the relay, has the header by which Envoy does not send the request to any other worker.
//
// There are at most three attempts; the last one has one worker, which computes the prompt and decodes. Package exchange chooses
// the workers and makes the bodies. The bodies of requests count in a budget of the relay, [exchange.Service.RelayBudget], as they
// arrive and until the answer begins: then no other attempt can follow. A leg to a prefill worker that is still open keeps its body
// until that is sent.
//
// Handler is safe for concurrent use.
package relay
