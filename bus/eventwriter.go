package bus

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

const (
	// gatherTime is the least time between two messages of a writer. Batches that come meanwhile share the
	// next one. A message costs a router several times as much as a batch in it.
	gatherTime = 5 * time.Millisecond
	// gatherBytes is the size at which a message is published at once.
	gatherBytes = 256 << 10
	// maxGathered bounds the batches that wait for their message. It is reached only while the connection
	// takes no more.
	maxGathered = 8 << 20
	// maxBatch bounds the bytes of one batch, so that a message has room for it and for its own fields.
	maxBatch = maxMessage - 1<<10
)

// EventWriter publishes the batches and marks of a node's ranks, many in one message. Create it with
// [Bus.EventWriter].
//
//	event                                    effect
//	Add, nothing published for gatherTime    published at once
//	Add, otherwise                           published when gatherTime has passed, with later ones
//	Add, more than gatherBytes wait          published at once
//	Add, maxGathered bytes wait              refused: routers find the gap and request a replay
//	ctx of Run ends                          waiting events are published
//
// All methods are safe for concurrent use. Batches are published in the order in which they were added.
type EventWriter struct {
	bus  *Bus
	node string
	// wake has one place: it is filled when something waits, or when enough waits to be published at once.
	wake chan struct{}

	mu      sync.Mutex
	waiting []byte // guarded by mu; encoded fields of the next message
}

// EventWriter returns a writer of the events of a node's ranks; an empty node means an agent without one.
// It publishes nothing until it is run.
func (b *Bus) EventWriter(node string) *EventWriter {
	return &EventWriter{bus: b, node: node, wake: make(chan struct{}, 1)}
}

// Add appends an encoded batch or mark to the next message. An error means that it will not be published:
// it is larger than a message, or too much waits.
func (w *EventWriter) Add(batch []byte) error {
	if len(batch) > maxBatch {
		return fmt.Errorf("publish events: a batch of %d bytes exceeds the %d of a message", len(batch), maxBatch)
	}

	w.mu.Lock()
	if len(w.waiting)+len(batch) > maxGathered {
		w.mu.Unlock()
		return fmt.Errorf("publish events: %d bytes wait for the bus already", maxGathered)
	}
	before := len(w.waiting)
	w.waiting = appendBatch(w.waiting, batch)
	isDue := before == 0 || before < gatherBytes && len(w.waiting) >= gatherBytes
	w.mu.Unlock()

	if isDue {
		select {
		case w.wake <- struct{}{}:
		default: // Run has been woken, and will see the waiting events
		}
	}
	return nil
}

// appendBatch appends an encoded batch as a field of a message.
func appendBatch(message, batch []byte) []byte {
	message = protowire.AppendTag(message, batchesField, protowire.BytesType)
	return protowire.AppendBytes(message, batch)
}

// Run publishes the events that are added, until ctx ends.
func (w *EventWriter) Run(ctx context.Context) {
	gathered := time.NewTimer(0)
	defer gathered.Stop()
	isOver := false // gatherTime has passed since the last message

	for {
		select {
		case <-w.wake:
		case <-gathered.C:
			isOver = true
		case <-ctx.Done():
			w.publish()
			return
		}

		// A message that is full does not wait for its time. One that is not due yet stays, and the timer
		// publishes it.
		if isOver || w.size() >= gatherBytes {
			if w.publish() {
				isOver = false
				gathered.Reset(gatherTime)
			}
		}
	}
}

// size returns how many bytes wait.
func (w *EventWriter) size() int {
	w.mu.Lock()
	defer w.mu.Unlock()

	return len(w.waiting)
}

// publish publishes the waiting events, in messages of at most maxMessage bytes. It reports whether anything did.
func (w *EventWriter) publish() bool {
	// Add goes on meanwhile, with new memory.
	w.mu.Lock()
	waiting := w.waiting
	w.waiting = nil
	w.mu.Unlock()

	for rest := waiting; len(rest) > 0; {
		size := messageSize(rest)
		// The client copies the bytes. An error means that its buffer for a reconnection is full.
		if err := w.bus.data.nc.Publish(w.bus.eventSubject(w.node), rest[:size]); err != nil {
			w.bus.cfg.Log.Debug("events not published", "node", w.node, "err", err)
		}
		rest = rest[size:]
	}
	return len(waiting) > 0
}

// messageSize returns how many of the fields at the beginning of waiting fit into one message, in bytes.
func messageSize(waiting []byte) int {
	if len(waiting) <= maxMessage {
		return len(waiting)
	}

	// A batch is never divided: the first that does not fit begins the next message.
	size := 0
	for {
		n := protowire.ConsumeFieldValue(batchesField, protowire.BytesType, waiting[size+1:]) // after the tag, one byte
		if size+1+n > maxMessage {
			return size
		}
		size += 1 + n
	}
}
