// Package disk is the tier of KV blocks on a local disk: a cache in one preallocated file, which outlives its process.
//
// The folder of a tier has three files. "lock" is locked by the process that has the tier open, and has its number. "blocks" has
// slots of equal size: a header of 4,096 bytes, and the bytes of a block rounded up to 4,096. "index" is a log of batches, each
// with a CRC32C, of which block is in which slot. [pool.Pool] manages the slots.
//
// A block may be lost at any time, and wrong bytes are never returned. That needs no fsync. These are the orders of events:
//
//	event            in memory                       in "blocks"                   in "index"
//	Store            a slot is taken: partial        header and bytes are written  -
//	  written        registered                      -                             add
//	  write failed   the slot is dropped; backoff    may be torn                   -
//	Load             the slot is acquired            is read                       -
//	  verified       released                        -                             -
//	  torn, stale    the block is evicted            -                             remove
//	room is needed   the block is evicted            is overwritten                (add of the next block)
//	Remove           the block is evicted            -                             remove
//	Flush            all blocks are evicted          -                             a new log, synced
//	Open             blocks of the log are adopted   -                             a new log
//
// The index can name a block that its slot no longer has, after a crash or after damage. So the first Load of a block after Open compares
// the slot's header with the key and the generation that the index has, and the CRC32C of the bytes with the CRC32C of the header. The
// generation is a number that no two writes share. Later loads, and loads of blocks that this process has written, know the CRC32C and
// read the bytes alone. A block that does not verify is dropped with [ErrTorn] or [ErrStale].
//
// At Open, the log is read up to the first batch that does not verify. A new log takes its place, as when the log becomes too
// long: it is written beside the old one and renamed.
//
// Blocks are read and written by a bounded number of goroutines, with O_DIRECT and asynchronous I/O of the kernel if these are available.
// Their requests wait in bounded queues, of which a full one answers [ErrBusy]. The goroutines copy between their own buffers and the
// memory of the callers. So a caller whose context ends returns at once, even when the disk does not answer, and nothing writes to its
// memory later. When writes fail, the tier refuses others for a time that grows up to a minute, and reads go on.
package disk
