// Package emitters reads the KV events of caches outside engines, such as LMCache's servers behind their coordinator, and keeps an index of
// their blocks for decisions.
//
// An emitter has a place in place of a rank: a node, some workers, or the whole cluster. Every rank there can load its blocks. To the
// packages below it is a worker with one rank, in another fleet and another index: no request goes there, and its blocks are no rank's.
// So packages kvsource and feed give it the same order, gaps, replays, restarts and states as an engine.
//
//	event                                    the emitter's blocks
//	---------------------------------------  ------------------------------------------------------------------
//	a batch on its topic                     as of an engine; a chunk is cut into blocks of the model's size
//	a batch on another topic of its socket   none change; the batch counts in the order, because the socket
//	                                         counts the messages of all its topics
//	the connection is lost                   stay, and count in no decision until it is back: the cache may be gone
//	the publisher is another process         are dropped; the messages of the new one are read from the first
//	a gap that no replay fills               are dropped, and built up again from later batches: stale, but no
//	                                         block is there that the cache has reported as removed
//	the model's block size changes           are dropped, and read again from the start
//
// Events without token ids name no content, so their blocks are not indexed.
//
// # Bounds
//
// The index has its own bound of memory, kvindex.DefaultMaxBytes, and is only made for a configuration with emitters. Each emitter has one
// connection, bounded as package kvsource describes.
//
// # Concurrency
//
// [Set.Run] owns every goroutine that it starts. All other methods are safe for concurrent use.
package emitters
