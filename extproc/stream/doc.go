// Package stream is the ext_proc door: it answers Envoy's external-processing stream with the router's decisions.
//
// One gRPC stream is one HTTP request. Envoy sends its headers, then its body as its filter is configured to, and
// waits for a response to each. Package exchange computes the replies without gRPC or protobuf; [Server] receives,
// calls it, and sends.
//
// # Events
//
//	message                         event of package exchange       reply
//	------------------------------  ------------------------------  --------------------------------------
//	request headers                 OnHeaders                       its reply; none in FULL_DUPLEX_STREAMED
//	request body                    OnBody, OnPiece                 its reply, with a new content-length
//	the same, queued                Await                           a longer timeout, then the decision
//	request trailers                the last OnPiece                its reply
//	a body beyond the budget        OnOverload                      its reply
//	response headers                OnResponse                      continue
//	response body                   OnResponseBody                  continue; the piece in FULL_DUPLEX_STREAMED
//	response trailers               the last OnResponseBody         continue
//	the end of the stream           OnEnd                           -
//	any other message               -                               a gRPC error that names the setting
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
// With observability_mode Envoy ignores replies, so there are none. A router that is a shadow reads such streams, whose bodies come in
// pieces, and follows all of them; another one ends them. A setting that cannot work is logged, once for each Envoy.
//
// # Followed requests
//
// The handler returns with the decision if the Envoy has an access log: a stream that stays open until the response ends would cost memory
// in both processes. If responses come in FULL_DUPLEX_STREAMED, the end of the stream must reach Envoy together with the decision, because
// Envoy keeps no copy of a piece that it sends to an ending stream: see [grpcserve.Endings]. Otherwise the
// handler follows the request, with nothing in memory but the exchange: see package exchange. The behaviour of Envoy 1.40 with an open
// stream depends on the modes of the filter:
//
//	request body                  response headers, body       Envoy
//	----------------------------  ---------------------------  -------------------------------------------------
//	BUFFERED, BUFFERED_PARTIAL,   any                          closes its half with the request; after the last
//	  STREAMED                                                   piece of the response it may reset the stream
//	FULL_DUPLEX_STREAMED          FULL_DUPLEX_STREAMED         the same
//	FULL_DUPLEX_STREAMED, NONE    headers SEND, body NONE      resets the stream after the response's headers
//	FULL_DUPLEX_STREAMED, NONE    headers SKIP                 resets the stream after the decision
//
// So a half that is closed is the end of the request, and so is a reset, except in the last two rows. There the request
// goes on unseen, and engines' reports end its booking. With allow_mode_override, Envoy sends no bodies of responses.
//
// An Envoy without failure_mode_allow cuts a response off when its stream fails, as after a crash of this process. A router
// that stops calls [Server.Drain] before: a stream that ends without an error changes nothing.
//
// # Concurrency
//
// Each stream has a goroutine, owned by the gRPC server, and a second one while it is followed, which receives.
package stream
