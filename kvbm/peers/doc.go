// Package peers is the host memory of other nodes as a tier of KV blocks.
//
// A [Source] sends the blocks in the host memory of a node's store to other nodes, by package stream. [Peers] fetches from them.
//
// # Summaries of peers
//
// Each node asks each of its peers every two seconds for a summary, over the connection that blocks come by: a Bloom filter of the peer's
// blocks with 12 bits for each, so 1.5 bytes, and at most 8 MiB. A summary that has not changed is not sent again. Lookups do no I/O.
//
//	event                                   effect
//	a summary comes                         it replaces the one before
//	a block is missing or damaged           counted; the peer is not asked for it again until its summary changes
//	no summary comes                        the peer has nothing, until one does; pauses between attempts double up to 30 s
//	a fetch fails                           the same, and the peer is not used for a pause that doubles up to 30 s
//	the peer refuses (token, layout, ...)   as above; the reason is logged when it changes, with the peer's address and name
//	a summary claims too much               the same, and the connection ends
//	the peer is this node itself            it is not used
//	the peer is removed                     it is not used, and the rest of its fetches comes from another one
//
// A lookup is wrong for 3 in 1,000 blocks that a peer does not have, and for blocks that came or left within the last seconds. That costs
// a failed fetch, or a block that is computed again. It never gives wrong bytes: a peer sends blocks by their keys, which cover model,
// layout and tokens, over a connection that only nodes with the token have.
//
// A summary is refused unless its size fits its number of blocks, and no more bits are set than so many blocks can set. So no node claims
// to have everything.
//
// # Peers that come and go
//
// Peers are the addresses of the configuration, and the addresses of [Peers.Set], which replaces the nodes that were found. One that is
// in neither any more is not asked again, its connection ends, and its filter is dropped. Fetches from it end, and their blocks come from
// another peer if one has them.
//
// # Fetching
//
// Blocks come from the peer that has most of the prefix. Blocks that it does not send come from one other peer, if that peer has them. As
// long as there is another one, the first gets half of the time until the deadline.
//
// # Bounds
//
// There are at most 256 peers, with a connection and a goroutine each, besides the reader of the connection. Nodes that are found beyond
// that are counted and not used.
package peers
