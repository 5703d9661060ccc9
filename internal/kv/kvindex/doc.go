// Package kvindex holds which rank has which prompt prefix in its KV cache, tier by tier, in a bounded
// number of bytes.
//
// It is a data structure: package feed applies engines' events to it, routers add predictions, and lookups
// read it. The order of events, transport, workers and costs are not its concern, and it reads no clock.
//
// # Structure
//
// A node is the content of a block with all blocks before it, keyed by its sequence hash. So ranks whose
// engines hash differently share nodes. A node has a set of holders: (rank, tiers) pairs. Sets are
// immutable and interned, because long parts of a prompt have the same holders. A lookup does work at each
// change of holders, not for each block and holder, and adding a holder does not grow the node. Each rank
// has a table from its engine's hashes to content, which removals need.
//
// There is no tree. A sequence hash names its whole prefix, and a lookup walks from the root. So nothing
// splits or merges, and an evicted block in the middle of a prompt can come back.
//
// That blocks follow each other is kept beside the nodes. Up to 64 consecutive blocks share a [chunk], each
// at a position that is never used for another content. The nodes of a chunk with equal holders share a
// [holderRun], which has a bit for each position. A node points to its run. A walk that finds the nodes at
// both ends of a row of set bits has found all between them, so it reads about one node in thirty:
//
//	chain      b0 b1 b2 b3 … b63 | b64 b65 …
//	chunk      ── chunk 1 ────── | ─ chunk 2 ─
//	position   0  1  2  3  … 63  | 0   1
//	holders    A  A  A  AB … AB  | AB  A
//	run bits   111000…0 (A), 000111…1 (AB) | 1 (AB), 01 (A)
//
// A change in the middle clears a bit in one run and sets it in another; nothing is rebuilt.
//
// A prediction is one bit in the same sets. Its records allow to take it back: see [Index.Predict]. Sliding-window groups of
// hybrid models have their own tables and bits in the same sets: see [Index.StoreWindow]. A dump has all reports of a rank's
// engine: see [Index.AppendDump].
//
// # Truth and bounds
//
// A block counts for a rank only if the engine reported it and did not remove it, or if a prediction has not
// expired. Tables, sets, orphans and predictions are charged to [Config.MaxBytes] before they are
// allocated, transient copies included. Above seven eighths of it the blocks that were stored or looked up
// least recently are evicted. If the bound is reached all the same, new blocks are not stored. Both lower
// the hit rate and nothing else.
//
// # Life of a rank
//
//	event       not known    known                      dropped
//	Store       known        stored                     (a new rank of that id)
//	Remove      -            removed                    -
//	Drop        -            dropped: lookups do not    -
//	            see it from that moment
//	Load        known        the old rank is dropped    known
//	reap        -            -                          its blocks leave the nodes, some at each write
//
// # Concurrency
//
// [Index.Lookup] takes no lock and never waits. It reads each row of blocks consistently, but it may see a
// part of a concurrent store. Writers are parallel by rank, and wait for each other only if two change
// neighbouring nodes. Locks are taken in this order: rank, node shard, chunk, set shard. The sweeper and the
// reaper hold no lock of a rank when they take another's.
package kvindex
