// Package kvindex remembers which rank holds which prompt prefix, tier by tier, in a bounded
// number of bytes.
//
// It is told, never asks: package feed applies what engines say, routers add predictions,
// and lookups read. It does not know the order of events, transport, workers or cost, and
// it reads no clock.
//
// # Structure
//
// Content is a node, keyed by the sequence hash of the chain up to it, so ranks whose engines
// hash differently share nodes. The set of (rank, tiers) that hold a node is immutable and
// interned, because long runs of a prompt have the same holders: a lookup does work per change
// of holders, not per block and holder, and a holder more costs a node nothing. Each rank has a
// table from its engine's hashes to content, which is what removals need.
//
// There is no tree: a chain hash names its own prefix, and contiguity is found by walking from
// the root. So nothing splits, nothing needs merging, and an evicted block in the middle of a
// prompt can come back. That blocks follow each other is noted beside: up to 64 of them share a
// stretch, each at a position that is never given twice, and the nodes of a stretch with equal
// holders share a run, which has a bit for each position. A node points to its run. So a walk
// that finds a node at both ends of a row of bits has found all between, and reads about one
// node in thirty; what changes in the middle clears a bit, and nothing is ever rebuilt.
//
// Predictions are a bit in the same sets, and one record for each call and stretch to take it back:
// an engine's hash they do not have. See [Index.Predict].
//
// Sliding-window groups of hybrid models have tables of their own and bits in the same sets:
// see [Index.StoreWindow]. A dump has a rank's engine hashes, content, stretches, windows and
// waiting blocks: see [Index.AppendDump].
//
// # Truth and bounds
//
// A block is reported for a rank only if the engine said so and has not taken it back, or a
// prediction has not expired. Tables, sets, orphans and predictions are charged to
// [Config.MaxBytes] before they are allocated, transient copies included. Above seven
// eighths of it the least recently stored or looked-up blocks are forgotten; where the
// bound is hit nevertheless, new blocks are not learned. Both lower the hit rate and
// nothing else.
//
// # Concurrency
//
// [Index.Lookup] takes no lock and waits for nobody. It reads each row of blocks whole; it does
// not see all of a concurrent store or none of it. Writers are parallel by rank and meet only
// where two change neighbouring nodes. Lock order: rank, node shard, stretch, set shard; the eviction
// hand and the reaper hold no rank's lock when they take another's.
package kvindex
