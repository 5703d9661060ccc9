package feed

import (
	"errors"

	"github.com/stator-project/stator/internal/kv/kvevent"
)

// Message is one batch of one rank's events, or a mark, as an agent publishes it to routers.
type Message struct {
	Worker string
	Rank   int
	// Epoch identifies the engine process; see fleet.Worker.
	Epoch uint64
	// Seq counts the rank's batches from 0 in each epoch. In a mark it is the number of the
	// batch that the agent will publish next.
	Seq uint64
	// Mark is true for a message without a batch. An agent publishes marks at regular intervals,
	// because the loss of a rank's last batches would otherwise show only at its next batch.
	Mark bool
	// End is true for a mark that is the agent's answer to a request: no batch from Seq on has been published before it. Other messages
	// can be late, and one with a wrong number must not keep a rank from being exact.
	End bool
	// State is the rank's state at its agent after this message: a rank is exact at a router only if it is
	// exact at its agent too, or if CaughtUp is true. A batch of [None] states nothing; a mark of None is not exact.
	State State
	// CaughtUp means that the agent has every batch that the engine has published since some number, although its own state is not
	// [Exact]: it has missed earlier ones. A router that has those can be exact.
	CaughtUp bool
	// Batch holds content hashes and engine hashes, never token ids. It is empty in a mark. A
	// receiver may use it during its callback only.
	Batch *kvevent.Batch
}

// Position is the end of one rank's events in its agent.
type Position struct {
	// Epoch identifies the engine process.
	Epoch uint64
	// Next is the number of the rank's next batch.
	Next uint64
	// State is the rank's state at its agent. Unless it is Exact, or CaughtUp is true, the engine may have published
	// batches that Next does not count.
	State State
	// CaughtUp is as in [Message].
	CaughtUp bool
}

// ErrNoSnapshot is returned by transports when a worker's agent has no snapshot of the rank.
var ErrNoSnapshot = errors.New("the agent has no snapshot of the rank")
