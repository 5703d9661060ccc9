// Package workeragent is the node agent: it starts engines, keeps them alive, and says on the
// bus what they are, hold and do.
//
// Each engine has a keeper. It launches the process, waits for its health, holds its lease,
// relays its KV events with epoch and sequence, reports its load, and starts it again when it
// dies, later each time. The package does not decide how many engines there should be and
// does not route.
//
// # Concurrency
//
// Agent.Run owns every goroutine and every child, and returns when all have ended. A keeper's
// worker is guarded by its mutex; everything else of a keeper belongs to its goroutine.
package workeragent
