// Package recency estimates which cached blocks of a prompt an engine will still have when it comes to
// the prompt.
//
// An engine that is full evicts its least recently used blocks. A prompt that waits in its queue holds none of its
// blocks yet, so the prompts before it may evict them. The index cannot know that: it has what the engine holds now.
//
// A [Stack] has the blocks of one rank in the order of their last use, as far as the rank's decisions show it. The number
// of blocks above one is its stack distance (Mattson et al., "Evaluation techniques for storage hierarchies", 1970): a
// cache with least-recently-used eviction still holds the block exactly if the distance is less than the cache's size.
// The prompts that wait are in the stack already, with the blocks that they will need. So the distance holds for the
// moment at which the engine comes to the next prompt.
//
// # Sampling
//
// A large cache needs no exact distance. A stack holds those blocks whose hashes have a number of zero bits at their
// end, such that their share of the cache is at most [samples] blocks, and multiplies its counts (Waldspurger et al.,
// "Efficient MRC Construction with SHARDS", FAST 2015). A cache of up to that size is counted exactly. A stack takes 100 KB
// at most.
//
// # Limits
//
// Decisions of other routers, and blocks of answers before a later prompt repeats them, are not in the stack. The caller
// asks only about blocks that the engine holds now, and only while prompts wait that do not fit beside them.
//
// # Concurrency
//
// A Stack has a lock; all methods are safe for concurrent use.
package recency
