// Package messages reads and writes the protobuf messages of every request: the two of Envoy's
// external-processing stream, the two responses to them, and the entry of the access log.
//
// The generated code builds a tree of the whole message with every header of the client, although the
// router needs five fields of it. That was half of the cost of ext_proc beyond gRPC itself. This package
// reads a message once and keeps those fields. All other messages (health, immediate responses) go
// through the generated code, because [Codec] passes on the types that it does not handle. The package
// decides nothing.
//
// The fields have the values that proto.Unmarshal would read, with two exceptions that Envoy never
// sends. A message field that occurs twice is refused, where protobuf would merge both. Text that is not
// UTF-8 is accepted, where protobuf would refuse it.
//
// # Concurrency
//
// A Request, Response or Log belongs to one goroutine. Functions share no state.
package messages
