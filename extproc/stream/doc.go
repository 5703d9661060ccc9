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
// With observability_mode Envoy ignores replies, so there are none. What cannot work is logged, once for each Envoy.
//
// # Concurrency
//
// Each stream has a goroutine, owned by the gRPC server. The handler returns as soon as nothing depends on it: a stream
// that stays open until the response ends would cost memory in both processes.
package stream
