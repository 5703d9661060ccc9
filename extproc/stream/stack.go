package stream

import "runtime"

// stackRoom is what a decision needs, so that the stack has its final size, 16 KiB.
const stackRoom = 10 << 10

// deepen grows the goroutine's stack while it is shallow. Templates run in closures within
// closures: a stack that grows down there is copied with all its frames, once for each size,
// which took 8 % of a small request's time, and takes 2 % here.
//
//go:noinline
func deepen() {
	var room [stackRoom]byte
	runtime.KeepAlive(&room)
}
