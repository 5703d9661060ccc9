// Package exchange is the state of one request between Envoy and the router, without a transport.
//
// A door is the code that receives Envoy's events and applies the replies: package stream is the one for ext_proc's
// protocol. It makes an [Exchange] for each request with [Service.Begin] and calls one method for each event. The
// package imports neither protobuf nor gRPC. It does not choose workers, which is package route's part.
//
// # Events and phases
//
//	phase        event                           reply                                 next phase
//	-----------  ------------------------------  ------------------------------------  -----------
//	WantHeaders  headers, a local path           the local page                        Finished
//	WantHeaders  headers, wrong method or path,  a refusal                             Finished
//	               or a body that is too large
//	WantHeaders  headers without a body          the decision, not booked              Finished
//	WantHeaders  headers, the body is unread     the decision by load, not booked;     Finished
//	                                               a refusal with several pools
//	WantHeaders  headers                         the booking's id                      WantBody
//	WantBody     the whole body                  the decision: a pick or a refusal     Finished
//	WantBody     the whole body, all ranks busy  queued; Await returns the decision    Finished
//	WantBody     the whole body, to be split     queued; Await returns the decision    Finished
//	                                               after the prefill
//	WantBody     a piece of it                   none until its end                    WantBody
//	WantBody     the first part, others follow   the decision by load                  Finished
//	WantBody     any of these, a followed pick   the same, with Follow                 Following
//	Following    headers and body of the         none                                  Following, or
//	               response                                                              Finished at its end
//	Following    no more events                  none; the end is reported             Finished
//	any          a panic of this program         no pick, or an error if a body        Finished
//	                                             must be read
//	any          the client leaves               none; a booking or ticket is ended    -
//
// The door decides which of these its protocol has. A body is unread if Envoy sends the request to a worker before its body arrives here.
// An event that does not fit the phase is a mistake of the door's protocol, which it reports.
//
// # Fail open
//
// Envoy forwards a request without a pick if this service is away, is slow or returns an error, unless a worker
// takes part in transfers of KV caches or clients have tenants: there package xds has it refuse the request, and
// so does this package if a body does not arrive. Package accesslog counts such requests, because a dead service
// would otherwise look like a healthy one. A request that is certainly wrong is answered at once, in OpenAI's
// format, and reaches no engine.
//
// # No booking is lost
//
// The reply to the headers contains the id of the future booking. Envoy sends the body after it has
// processed that reply. So Envoy has the id of every picked request, and the access-log entry that ends
// the booking contains it. A request that is picked by its headers has no such reply: the pick is lost if its
// client has cancelled. It is therefore not booked. A door that delivers the id with the pick sets Head.DerivedID: then the id
// follows from the request's id, which the access log has in any case.
//
// # Followed requests
//
// If the [Feedback] wants the ends of an Envoy's requests, because no access log reports them, the door keeps a
// picked request and hands in its response, and its end with or without one. The exchange then holds the
// booking's id, the picked addresses and a few numbers; the decision and the body were given back. The first of
// all sources ends the booking, because the end of a booking that does not exist changes nothing. Requests that
// are not booked are not followed.
//
// # Queue
//
// The router decides at once, or queues the request. For a queued request the door calls [Exchange.Await], which
// always ends with a decision: a pick, or a refusal with a time to retry after. A client that cancels leaves the
// queue at once.
//
// # Prefill workers
//
// If a model has prefill and decode workers, the decision names the decode worker. The exchange then has a prefill worker compute the
// prompt, over HTTP, and Envoy sends the request with the parameters of the transfer to the decode worker. Without them, the decode worker
// computes the prompt by itself: so no failure of a prefill worker fails a request. The door waits as it waits for the queue, at most
// [route.PrefillTimeout] longer. Each of both workers has a booking.
//
// # Memory
//
// A body lies in one buffer of the door, which the request's strings refer to. The door uses it for another request
// after the reply, so nothing may keep a string of a body. The bodies for which decisions are being made have a budget
// in bytes, [Service.Reserve]; a request beyond it is answered with 503. While a prefill worker computes a prompt, the body counts in
// another one, and the relay has two more: see [Budget].
//
// # Trust
//
// Clients can set every header and every member of a body. Values that only Envoy can set are in [Origin]. An
// Envoy that package xds has configured marks the requests of its listener for trusted clients there. Any other
// Envoy belongs to an operator whose filters authenticate clients: for these the configured headers with a
// client's role and tenant count.
//
// # Concurrency
//
// An Exchange belongs to one goroutine. The exchanges share a [Service] and its route.Router, which are safe for
// concurrent use.
package exchange
