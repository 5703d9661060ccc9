// Package programs holds back programs of agents whose contexts would not fit into the caches of a pool beside the programs that are there.
//
// An agent sends one request after another, each with the whole context before it. While a tool runs, the engine keeps the context as long
// as no other one needs the room. If more programs run than caches have room for, each step finds its context evicted, and computes it
// again: then all programs are slow. So a [Table] admits a program while the contexts of the programs that it has admitted leave room, and
// a step of an admitted program goes at once. A program leaves when it has sent nothing for four times the mean pause, at most a
// minute.
//
// The package reads no clock. A Table is safe for concurrent use, and bounded.
package programs
