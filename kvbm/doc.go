// Package kvbm manages the KV blocks of a node that are not on its GPUs: in host memory, in the host memory of other nodes, on a disk,
// and in an object store.
//
// A [Store] has the blocks of one layout. Engines write the blocks that they have computed into slots of host memory, which they share
// with the store, and load from there. Behind host memory there are slower tiers ([Backend]): packages peers, disk and object. Package
// pool decides which block is in which slot, and package onboard how much of a prefix is worth loading.
//
// # The life of a block
//
//	event                         host memory                         slower tiers
//	Reserve                       a slot is taken; others may leave   -
//	Commit                        it is registered under its key      the block is queued, as the tier's policy has it
//	  the queue is full           -                                   the block is not copied, and counted
//	Find                          its use is counted                  a block that is used again is queued, as the policy has it
//	Fetch                         it is held until Lease.Release      a block that is here alone is read into a slot first
//	  damaged, late, missing      the lease ends before it            -
//	room is needed                the least valuable one leaves       it stays there
//	Pin, PinShare                 it leaves after all others          it is copied to every tier at once, and pinned there
//
// # Bounds
//
// Engines' calls never wait for a slower tier, except Fetch, which waits until its deadline. Pin waits too: operators call it. Copies to
// a tier wait in a queue of Config.Queue blocks, which Run's goroutines empty. If one Fetch reads a block, others that want it wait for
// that read. A lease holds slots in host memory, and Reserve refuses blocks for which there is no room. Engines pin prompts for their
// clients by PinShare: at any time they have pinned at most as many blocks as a quarter of host memory has slots.
//
// # Wrong bytes
//
// Tiers verify by checksums the blocks that they return, and a block is registered only after all its bytes are there. A slot to which a
// given up transfer may still write is quarantined: see [Store.Quarantine].
//
// # Concurrency
//
// All methods may be called from any goroutine. A mutex guards the pool of host memory; no I/O is done with it.
package kvbm
