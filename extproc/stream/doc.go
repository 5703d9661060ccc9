// Package stream answers Envoy's external-processing stream with the router's decisions.
//
// One gRPC stream is one HTTP request. Envoy sends its headers, then its body as its filter is configured to, and
// waits for a response to each. A state machine, exchange, computes the replies without gRPC or
// protobuf; [Server] receives, calls it, and sends. The package does not choose workers, which is package
// route's part. It never sees the workers' responses: the access log reports the end of a request.
//
// # Events and phases
//
//	phase        event                           reply                                 next phase
//	-----------  ------------------------------  ------------------------------------  -----------
//	wantHeaders  headers, a local path           the local page                        finished
//	wantHeaders  headers, wrong method or path,  a refusal                             finished
//	               or a body that is too large
//	wantHeaders  headers without a body          the decision, not booked              finished
//	wantHeaders  headers                         continue, with the booking's id       wantBody
//	wantBody     the whole body                  the decision: a pick or a refusal     finished
//	wantBody     the whole body, all ranks busy  queued: a longer timeout, then the    finished
//	                                             decision
//	wantBody     a piece of it                   none until its end                    wantBody
//	any          any other message               a gRPC error that names the setting   -
//	any          a panic of this program         continue without a pick               finished
//	any          Envoy ends the stream           none; a booking or ticket is ended    -
//
// # Modes
//
// Envoy's first message has the request_body_mode of its filter:
//
//	BUFFERED              the whole body is read
//	FULL_DUPLEX_STREAMED  the pieces are gathered, read, and sent back after the reply to the headers
//	BUFFERED_PARTIAL      a body that Envoy's buffer holds is read; a longer one goes by load
//	STREAMED, NONE        Envoy forwards the headers first, so the request goes by load; with several models it is refused
//
// With observability_mode Envoy ignores replies, so there are none. What cannot work is logged, once for each Envoy.
//
// # Fail open
//
// Envoy forwards a request without a pick if this service is away, is slow or returns an error. Package
// accesslog counts such requests, because a dead service would otherwise look like a healthy one. A
// request that is certainly wrong is answered at once, in OpenAI's format, and reaches no engine.
//
// # No booking is lost
//
// The reply to the headers contains the id of the future booking. Envoy sends the body after it has
// processed that reply. So Envoy has the id of every picked request, and the access-log entry that ends
// the booking contains it. A request without a body is picked in the first reply, which is lost if its
// client has cancelled. It is therefore not booked. In mode FULL_DUPLEX_STREAMED the id is in the reply with the pick.
// There it follows from the request's x-request-id, which the access log has in any case.
//
// # Queue
//
// The router decides at once, or queues the request. For a queued request the stream waits: Envoy
// receives, once, a timeout slightly longer than the longest wait. The wait always ends with a decision:
// a pick, or a refusal with a time to retry after. A client that cancels leaves the queue at once.
//
// # Memory
//
// A body lies in one buffer, which the request's strings refer to. It is used for another request after the
// reply, so nothing may keep a string of a body. The bodies for which decisions are being made have a budget in
// bytes; a request beyond it is answered with 503 before its body is copied.
//
// # Trust
//
// Clients can set every header and every member of a body. What only Envoy can set is the metadata with which
// it opens a stream. An Envoy that package xds has configured marks the requests of its listener for trusted
// clients there. Any other Envoy belongs to an operator whose filters authenticate clients: for these the
// configured headers with a client's role and tenant count.
//
// # Concurrency
//
// Each stream has a goroutine, owned by the gRPC server. The streams share the route.Router, which is safe
// for concurrent use. The handler returns as soon as nothing depends on it: a stream that stays open
// until the response ends would cost memory in both processes.
package stream
