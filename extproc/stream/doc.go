// Package stream answers Envoy's external-processing stream with the router's decisions.
//
// One gRPC stream is one HTTP request: Envoy sends its headers, then its whole body (mode
// BUFFERED), and waits for an answer to each. What to answer is [exchange]'s business, a
// state machine that knows neither gRPC nor protobuf; [Server] receives, asks it, and
// sends. The package does not choose workers (route does) and never sees a response: how
// requests end is told by the access log, in the package below.
//
// # Fail open, but never silently
//
// Envoy sends a request on unpicked when this service is away, slow or returns an error.
// Such requests are counted by package accesslog, because a dead service looks like a
// healthy system otherwise. A request that we can tell is bad is answered at once, in
// OpenAI's shape, before an engine is bothered.
//
// # No booking is lost
//
// The answer to the headers carries the id that the booking will have; Envoy sends the body
// only after it has taken that answer in, so a request that is picked always has its id in
// Envoy's hands, and the access-log entry that ends the booking names it. Requests without
// a body are picked in the first answer, which may be lost with a client that left; they
// are not booked.
//
// # Waiting
//
// The router decides at once or says that the request has to wait. Then its stream is parked: Envoy
// is told, once, to be patient for a little longer than the wait may last, and the wait always ends
// with an answer: the pick, or a refusal that says when to come again. A client that leaves is
// out of the queue at once.
//
// # Concurrency
//
// Each stream has its own goroutine, owned by the gRPC server; streams share the Router,
// which is safe for that. The handler returns as soon as nothing depends on it: a stream
// held until the response ends would cost memory in both processes.
package stream
