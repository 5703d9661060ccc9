package kvsource

import "github.com/stator-project/stator/internal/kv/kvevent"

// Consumer receives the events of one rank. The package comment has a table of the calls.
type Consumer interface {
	// Batch receives one message. It returns gap true if it has not applied the message because
	// an earlier one is missing. The source then replays from number resume and delivers this
	// message again, for Config.Timeout at most. Only the consumer can decide that the missing
	// messages are gone for good: by accepting this one.
	//
	// A seq that is not above the one before was asked for with resume, or belongs to a
	// restarted engine. b is valid during the call only.
	Batch(seq uint64, b *kvevent.Batch) (resume uint64, gap bool)

	// Restarted reports that the engine is a new process. Nothing of the old one is cached any
	// more, and the next batches count from 0.
	Restarted()

	// CaughtUp reports that every message before number next was accepted, and that the engine of
	// the present connection is the process that sent them: it has answered a replay to its end.
	// Later messages are on their way. If the consumer misses earlier ones all the same it
	// returns gap true, and the source replays from number resume.
	CaughtUp(next uint64) (resume uint64, gap bool)

	// Connected reports that a connection to the event socket was made (true) or lost (false).
	// It must not block and must not call the source. A loss is reported at once, during another
	// method if need be. A new connection is reported after the messages of the one before.
	Connected(up bool)
}

// Batches is a Consumer that accepts every batch and ignores everything else.
type Batches func(b *kvevent.Batch)

// Batch calls f and reports no gap.
func (f Batches) Batch(_ uint64, b *kvevent.Batch) (resume uint64, gap bool) {
	f(b)
	return 0, false
}

// Restarted does nothing.
func (Batches) Restarted() {}

// CaughtUp reports no gap.
func (Batches) CaughtUp(uint64) (resume uint64, gap bool) { return 0, false }

// Connected does nothing.
func (Batches) Connected(bool) {}
