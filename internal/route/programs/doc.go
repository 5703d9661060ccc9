// Package programs holds back steps of agents' programs for whose contexts the caches of a pool have no room.
//
// An agent sends one request after another, each with the whole context before it. While a tool runs, the engine keeps the context as long
// as no other one needs the room. If more programs run than caches have room for, each step finds its context evicted, and computes it
// again: then all programs are slow. So a [Table] sums the contexts of the programs that are present, which run or pause for no longer than
// the mean pause. A step whose context is still cached goes at once. One whose context is not, because it is the first or the context was
// evicted, is held back while the sum leaves no room for it.
//
// Of the steps that are held back, the one goes first whose program is expected to need the least: its context times the number of steps
// that it still has before it, by the lengths of programs that have ended.
//
// No program starves: all its steps together are held back for no longer than a limit, and than twice the time that programs take.
//
// The package reads no clock. A Table is safe for concurrent use, and bounded.
package programs
