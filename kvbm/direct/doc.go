// Package direct fetches KV blocks from the host memory of other nodes by NIXL, which writes them into their slots without a copy in this
// process.
//
// A [Direct] runs the child stator-transfer, which maps the memory of the node's store. Nodes ask each other for the slots of blocks by
// calls of package stream, so both sides have proved that they have the token:
//
//	step      client                                     server
//	read      keys, and the agent whose endpoint it has  holds the blocks that it has; answers with a lease, slots, a key and a
//	                                                     tag of each block by it, and with its endpoint if the client lacks it
//	transfer  NIXL READ of all blocks into their slots   -
//	          compares the tag of each                   -
//	done      the lease                                  releases the blocks
//
// A [Peer] is the client of one node. It fetches by the stream all blocks that it cannot fetch by NIXL.
//
// # Endpoints
//
// NIXL registers memory with all rights, so who has an endpoint can read and write the whole store. It goes only to clients that have
// the token, which is the secret of all nodes. Clients send none: a server has no use for it.
//
// The bytes that NIXL carries are not authenticated by NIXL. The key and the tags come over the stream, which is. Without the key, other
// bytes with the same tag cannot be made.
//
// # Leases
//
//	event                                   blocks of the lease
//	done, or the end of the connection      released
//	[Config.LeaseTime] is over              released
//	there is no room for more blocks        the answer covers fewer keys, perhaps none; the client gets the rest by the stream
//
// A client reads for less than LeaseTime. To release blocks while one still reads is safe all the same: it gets the bytes of whatever is in
// the slot by then, and their tag is another one. A connection holds at most half of the blocks that all of them may, which is a quarter
// of the slots.
//
// # When a transfer fails
//
// NIXL goes on with a transfer that was given up, and would write to slots that the store uses for other blocks. So [Peer.Fetch] fences
// the child before it returns: the child is killed, after which nothing writes, and starts again. That takes milliseconds, and half a
// second without NIXL. Transfers with other peers fail, too, and their blocks come by the stream. To spare the nodes that read from a
// node which fences its child, a client asks the same process first which agent it runs: if that is another one, the one before has
// ended, and no fence is needed.
//
//	event                                          effect
//	the child does not start                       blocks come by the stream; it is started again after pauses that double up to 30 s
//	the child starts again, or there is no room    blocks come by the stream
//	the peer answers no calls, or declines         the same; the peer is tried again after pauses that double up to 30 s
//	a block has other bytes                        the same
//	a transfer fails, and the peer's process lives the same, after a fence
//	its time is over                               the same, after a fence
//	another process of the peer answers            its endpoint is added, and the old one removed
//
// A transfer gets half of the time until the deadline, so that the stream has the other half, and is not begun if that may not suffice.
//
// Reasons are logged when they change. [Direct.Stats] has them.
//
// # Concurrency
//
// All methods are safe for concurrent use. [Direct.Run] owns the child. A lease has a timer.
package direct
