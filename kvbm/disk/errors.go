package disk

import "errors"

// Errors of the operations. Errors of the file system are wrapped.
var (
	// ErrNotFound is the error of Load when the tier does not have the block.
	ErrNotFound = errors.New("the tier does not have the block")
	// ErrTorn is the error of Load when the bytes of a slot were damaged or not written to the end. The block is dropped.
	ErrTorn = errors.New("the bytes of the block are damaged")
	// ErrStale is the error of Load when a slot has another block, or another generation, than the index has. The block is dropped.
	ErrStale = errors.New("the slot has another block")
	// ErrBusy is the error of Load and Store when the queue is full.
	ErrBusy = errors.New("the queue of the tier is full")
	// ErrFailing is the error of Store for a time after a write failed.
	ErrFailing = errors.New("the tier takes no blocks for a time, because a write failed")
	// ErrFlushed is the error of Store when Flush was called before the block was written.
	ErrFlushed = errors.New("the tier was flushed meanwhile")
	// ErrSize is the error of Load and Store when the length of the bytes differs from the block's length, or is not possible.
	ErrSize = errors.New("the length of the block does not fit")
	// ErrClosed is the error of all operations after Close.
	ErrClosed = errors.New("the tier is closed")
	// ErrLocked is the error of Open when another process has the folder open.
	ErrLocked = errors.New("another process has the folder open")
	// ErrNoSpace is the error of Open when the file system has no room for the blocks.
	ErrNoSpace = errors.New("the file system has too little room")
)
