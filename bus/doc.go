// Package bus is how the parts of one cluster find and hear each other: NATS, and nothing
// but NATS.
//
// Workers are leases in a key-value bucket: an agent asserts them every third of their TTL
// and puts them back after any pause, so a worker that lives is in the fleet again without
// anybody's help. KV events and load are plain messages, which may be lost and say by their
// sequence numbers that they were. The plan is a key of a second bucket. Storage is memory:
// everything on the bus can be said again by those who know it. [Embed] runs the server in
// this process; [Connect] joins one.
//
// Subjects are stator.v1.<cluster>.{kv.<worker>.<rank>, load.<worker>, rpc.<worker>.replay,
// rpc.<worker>.snapshot}. What is larger than a message, as a snapshot may be, is pulled in pages.
// Messages are msgpack behind a version byte and stay under 1 MiB.
//
// The package does not know what a lease or an event means for routing: discovery and feed do.
//
// # Concurrency
//
// A Bus is safe for concurrent use. Functions named Hold, Watch, Serve and Subscribe block until
// their context ends and own what they start; callbacks run one at a time per call.
package bus
