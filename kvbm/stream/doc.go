// Package stream fetches KV blocks from the host memory of another node, over one TCP connection for each peer.
//
// A [Server] sends blocks from a [Source] without copying them. A [Client] receives them into slices of the caller, and verifies each.
//
// # Frames, version 2
//
// Numbers are little-endian. A frame is 1 byte kind, 3 zero bytes, 4 bytes length, and that many bytes.
//
//	kind     from     content
//	hello    both     JSON: version, node, a proof of the token, and from the client its layout
//	refused  server   1 byte why, then a text
//	request  client   4 id, then 1 to 1024 keys of 16 bytes
//	credit   client   4 bytes: so many bytes more may be sent
//	cancel   client   4 id
//	block    server   4 id, 4 index, 8 generation, 4 CRC32C, 4 length; then the block's bytes, or nothing if it is missing
//	busy     server   4 id of a request that is one too many
//	ask      client   4 id, 8 version of the summary that the client has, or 0
//	summary  server   4 id, 8 version; then the summary, or nothing if the client has that version
//	call     client   4 id; then a message of 1 byte to 64 KiB
//	answer   server   4 id, 1 byte (1 if the call is declined); then the answer, or the reason, of at most 1 MiB
//
// # Handshake
//
// All frames are sent by TLS 1.3, with a certificate that the server makes when it starts. Clients do not check it. Each side proves
// instead that it has the token: by HMAC-SHA256 with the token as key, over its role and keying material that both ends export from the
// connection (RFC 9266). One who relays a proof has two connections with other material each, so both sides refuse it with [ErrToken].
// What follows the hellos is encrypted and authenticated by TLS: changed bytes end the connection.
//
// The server refuses another version, a wrong proof, a layout with other bytes, and connections above its bound.
//
// TLS was chosen over frames that are sealed by AES-GCM with a key of the token: BenchmarkFetch had 0.9 to 1.9 GB/s with TLS, 1.1 to 2.5
// with AES-GCM in records of 128 KiB, and 1.6 to 4.6 without either, on loopback with both ends on two cores. A network of 10 Gbit/s is
// full with each, faster ones have NIXL, and a protocol of our own for keys would have to be reviewed as TLS has been.
//
// # Credits
//
// The client grants bytes, [ClientConfig.Window] at first and as many as it has received from then on. The server sends blocks only
// within the grant. It acquires the blocks of one write at a time, and none while it waits for credit.
//
// # Summaries
//
// A summary describes which blocks the source has, in a form that this package does not interpret. It takes no credit, because it is
// bounded and a connection has one on the way at most: a later ask replaces an earlier one.
//
// # Calls
//
// A call is a message to the server, which answers it. This package does not interpret them: package direct does. A server that answers
// calls states it in its hello. A client sends none to another server.
// Calls of a connection are answered one after the other, between blocks. 8 are on the way at most, and a server closes a connection
// with more than 64.
//
// # When a transfer ends early
//
// Fetch returns at its deadline, and from then on no byte arrives in its slices. Bytes that follow for its request are read and dropped.
// If the receiver is in the middle of a block and the rest does not come within a tenth of a second, the connection is closed, because
// only that keeps late bytes out. The slices are in quarantine until then, inside of Fetch. The connection is closed as well when nothing
// at all came during a transfer that reached its deadline. Other transfers of the connection fail then, and the next one connects again.
//
// # Bounds
//
// A peer without the token makes the server read at most the handshake of TLS, of 64 KiB, and 16 KiB, within
// [ServerConfig.HandshakeTimeout]. Of more than 64 handshakes at once, the oldest one of the address with most of them ends. Connections,
// requests of a connection, keys of a request and bytes of a frame are bounded. A connection without a frame for
// [ServerConfig.IdleTimeout] is closed, as is one that does not take a write within [ServerConfig.WriteTimeout]. A client whose request
// meets that end sends it again on a new connection.
//
// # Concurrency
//
// Each connection has a goroutine that reads, and on the server another one that writes. [Server.Serve] and [Client.Close] wait for them.
package stream
