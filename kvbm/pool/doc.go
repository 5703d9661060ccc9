// Package pool decides which block is in which slot of a tier, and which block leaves when room is needed.
//
// A tier has a fixed number of slots of equal size. The package has their states and no bytes: the owner of the tier reads and
// writes those. It does no I/O, takes the time as an argument, and allocates no memory after New.
//
// Each slot is in one of these states:
//
//	reset        no block
//	partial      taken: its taker writes bytes
//	complete     its bytes are written, and have no key yet
//	active       registered under a key, with references: its bytes must not change
//	inactive     registered under a key, without references: it can be evicted
//	leaving      its key was evicted, and references are left
//	quarantined  a transfer that was given up may still write to it
//
// And these events change the state. Every other combination returns an error that wraps [ErrState]:
//
//	event          from                 to
//	Take           reset                partial
//	               inactive             partial, if no slot is reset: the block is evicted
//	Complete       partial              complete
//	Register       complete             active, or reset if another slot has the key
//	Acquire        active, inactive     active
//	Release        active               inactive, after the last reference
//	               leaving              reset, after the last reference
//	Evict, Flush   inactive             reset
//	               active               leaving
//	Drop           partial, complete    reset
//	Quarantine     partial, complete    quarantined
//	Lift           quarantined          reset
//	Adopt          reset                inactive
//
// Take evicts the block with the lowest priority, and among equals the least recently used. A pin keeps a block until its time has come:
// Take evicts pinned blocks only for callers that move them to another tier, and after all others. The time of use is the time of the
// last Release, so callers release the blocks of a prompt in reverse: the end of a prefix is useless without its beginning.
//
// A [Pool] and a [Sketch] are not safe for concurrent use. Their owner has a mutex.
package pool
