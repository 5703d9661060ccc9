// Package messages reads and writes the protobuf messages that every request costs: Envoy's
// two of the external-processing stream, our two answers, and the entry of the access log.
//
// The generated messages build a tree of the whole message, every header of the client
// in it, of which we read five fields: half of what ext_proc costs beyond gRPC itself. Here a
// message is walked once and what we read is kept. All other messages of a server (health,
// answers of our own) go through the generated code, because [Codec] hands on what it does not
// know. The package decides nothing and knows no router.
//
// What is read is what proto.Unmarshal would read, but for two things that Envoy never sends:
// a field that is a message and comes twice is refused, where protobuf would merge both, and
// text that is not UTF-8 is passed on in fields that we read and not looked at in others.
//
// # Concurrency
//
// A Request, Response or Log belongs to one stream. Functions share nothing.
package messages
