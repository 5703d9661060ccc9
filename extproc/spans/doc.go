// Package spans exports one OpenTelemetry span for a request, by OTLP over gRPC or HTTP.
//
// A span covers a request from its headers at the router to the end of its answer. It is written after the fact: from the decision,
// from the times of its steps and from the access-log entry that ends it. The steps are events of the span. Its parent is the span in
// the request's header traceparent, and the engine's spans are its children, because the router replaces that header.
//
// # Which spans are exported
//
//	a request                                                    its span is exported
//	-----------------------------------------------------------  --------------------
//	its traceparent has the flag sampled                         always
//	it has no valid traceparent                                  at Config.Ratio
//	it was refused, or its answer has a status of 500 or more    always
//	its first token took at least Config.SlowerThan              always
//
// Only the first two are known before the answer, so only these requests carry the router's span to their engines. A span of the others
// has the trace and the parent of its request, and no child.
//
// # Bounds
//
// Finished spans wait in a queue of queueLength, and one that does not fit is dropped and counted. One goroutine, [Tracer.Run], sends
// them in batches. A batch that the receiver does not accept in sendTimeout is dropped and counted too. So a receiver that is away or
// slow delays no request.
//
// A span is encoded here and not by OpenTelemetry's SDK: see docs/adr/0027-spans-without-the-sdk.md.
//
// A [Tracer] is safe for concurrent use. A [Span] belongs to one goroutine at a time.
package spans
