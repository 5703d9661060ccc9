package stream

import "runtime"

// stackRoom makes the stack grow to 16 KiB, which a decision needs.
const stackRoom = 10 << 10

// growStack grows the goroutine's stack while it has few frames. Chat templates run in nested closures. A
// stack that grows there is copied with all its frames, once for each size. That took 8 % of a small
// request's time, and takes 2 % here.
//
//go:noinline
func growStack() {
	var room [stackRoom]byte
	runtime.KeepAlive(&room)
}
