// Package object keeps KV blocks in an object store: the fourth tier, which all nodes share.
//
// Blocks are collected into packs of up to 16 MiB, so that 64 blocks cost two requests to write and one to read.
//
// # Objects
//
//	<prefix>/v2/<space>/p/<name>   a pack: the bytes of its blocks, without gaps
//	<prefix>/v2/<space>/i/<name>   its index: keys, offsets, lengths and tags
//	<prefix>/v2/<space>/probe      one byte, by which a node finds out whether it can write and read
//
// A name is the time in milliseconds, a random number of the process, the number of the pack, and the node:
//
//	0199d3c7a1f0-6c1f0e9d2b7a4c35-0000002a-node7
//
// Names sort by time. No two processes make the same name. So nodes that store the same blocks make two packs with the same
// content, which costs room and does no harm.
//
// # Publication
//
// The pack is written first, and then its index. A pack without an index does not exist for readers. Both are written only if
// the name is free, so an attempt that is repeated after a lost answer changes nothing.
//
// # The index, version 2
//
// Numbers are little-endian.
//
//	 4  magic "SKVI"
//	 2  version, 1
//	 2  zero
//	32  space
//	 4  bytes of a block
//	 4  number of entries, 1 to 4096
//	    for each entry, in the order of the pack: 16 key, 4 offset, 4 length, 16 tag of the block
//	16  tag of all bytes before
//
// # Authenticity
//
// Tags are made by [block.MAC]. Each pack has another key, by HKDF-SHA256 of [Config.Secret], the space and the pack's name. The number
// of a block's tag is its place in the pack. So one who writes to the bucket without the secret can neither change a block nor put it
// elsewhere, under another key, in another pack or in another layout. An index with a wrong tag is refused as a whole and counted, and a
// block with a wrong one when it is loaded.
//
// A node with a secret refuses what one without a secret has written, and the other way round. Without one, tags find damage alone.
// Objects of version 1, which had checksums, are under another name and are neither read nor deleted.
//
// # How a node learns about others
//
// A node lists the index objects that are newer than the newest it has seen, less [Config.Overlap]: clocks differ, and a pack
// gets its name before it is written. What appears later than that is found by the next sweep. At most [Config.MaxBlocks] blocks
// are remembered. The oldest packs are forgotten first, and counted.
//
// # Deletion
//
// A sweep lists all index objects. It forgets the packs that are gone, and deletes packs that are older than [Config.MaxAge], and the
// oldest packs while there are more than [Config.MaxBytes]. A node deletes only the packs that have its name, because two nodes
// that delete by the size of the whole bucket would delete twice as much as needed. One node, and not more, may have
// [Config.DeleteOthers], which removes the packs of nodes that have left. The index is deleted before the pack. A reader that has learned
// a pack which is deleted later finds no object, and gets [ErrMissing].
//
// # States
//
//	starting  no probe has succeeded yet                    calls fail with ErrUnavailable
//	healthy                                                 calls are sent
//	failing   a lasting fault, or three others in a row     calls fail with ErrUnavailable and the reason, at once
//
// A probe writes, reads and lists. It is repeated after growing pauses, and its success makes the tier healthy. Faults are errors of the
// store itself: no such bucket, wrong credentials, a wrong clock, no connection, deadlines that pass after [Config.SlowAfter] without an
// answer. A missing object is no fault.
//
// A pack that could not be written stays in memory for [Config.PackLifetime], and is then dropped and counted.
//
// # Concurrency
//
// [Tier.Run] owns all goroutines. Other methods may be called at any time from any goroutine. At most [Config.Requests] requests are on
// the way at once. Each has two deadlines: the deadline of the caller's context, and [Config.Timeout].
package object
