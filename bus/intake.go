package bus

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/nats-io/nats.go"
	"github.com/zeebo/xxh3"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/feed"
)

const (
	// maxIntakes bounds the goroutines that read events.
	maxIntakes = 64
	// maxWaiting bounds the bytes of events that wait to be read, of all nodes together. Events beyond it are
	// dropped and counted; their ranks are recovered.
	maxWaiting = 64 << 20
	// messageCost is the memory that a waiting message needs beside its bytes.
	messageCost = 256
)

// SubscribeEvents calls apply for every batch and mark of every rank until ctx ends. Messages of one node come
// one after the other, in order. Messages of different nodes come from up to Config.Intakes goroutines at the
// same time. The message and its batch are valid during the call. A subscriber that is too slow loses batches,
// and finds that by their sequence numbers.
//
// The node is taken from the subject, so an agent that may publish for its own node only cannot publish
// events of another node's workers.
func (b *Bus) SubscribeEvents(ctx context.Context, apply func(*feed.Message)) error {
	in := &intake{bus: b, apply: apply, queues: make([]chan *nats.Msg, b.cfg.Intakes)}

	var readers sync.WaitGroup
	defer readers.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	for i := range in.queues {
		queue := make(chan *nats.Msg, maxWaiting/messageCost/len(in.queues))
		in.queues[i] = queue
		readers.Go(func() { in.applyQueue(ctx, queue) })
	}

	return b.data.subscribe(ctx, b.eventSubject("*"), in.enqueue)
}

// intake distributes messages with events to goroutines, by node.
type intake struct {
	bus     *Bus
	apply   func(*feed.Message)
	queues  []chan *nats.Msg
	waiting atomic.Int64 // bytes of the messages in the queues
}

// enqueue gives a message to the goroutine of its node. It drops the message if too many bytes wait.
func (in *intake) enqueue(m *nats.Msg) {
	// The name of the node decides, so that the batches of a rank stay in order.
	size := int64(len(m.Data)) + messageCost
	queue := in.queues[xxh3.HashString(m.Subject)%uint64(len(in.queues))]

	// The bytes are reserved first, because other messages are read and released at the same time.
	if in.waiting.Add(size) <= maxWaiting {
		select {
		case queue <- m:
			return
		default: // as many small messages wait
		}
	}

	in.waiting.Add(-size)
	in.bus.reader.dropped.Inc()
}

// applyQueue applies the messages of a queue until ctx ends.
func (in *intake) applyQueue(ctx context.Context, queue <-chan *nats.Msg) {
	// The decoder reuses its memory for every batch.
	var d batchDecoder
	for {
		select {
		case m := <-queue:
			in.readMessage(&d, m)
			in.waiting.Add(-int64(len(m.Data)) - messageCost)
		case <-ctx.Done():
			return
		}
	}
}

// readMessage applies the batches of a message. One that is wrong is dropped and counted, and the others are
// applied.
func (in *intake) readMessage(d *batchDecoder, m *nats.Msg) {
	node, err := nodeOf(m.Subject)
	if err != nil {
		in.bus.reader.refuse(kindEvents, m.Subject, err)
		return
	}

	newer, err := eachField(m.Data, func(number protowire.Number, data []byte) error {
		if number != batchesField {
			return nil
		}
		e, unknown, err := d.decode(node, data)
		if err != nil {
			in.bus.reader.refuse(kindEvents, m.Subject, err)
			return nil
		}
		if unknown {
			in.bus.reader.skipped(kindEvents, m.Subject)
		}
		in.apply(&e)
		return nil
	})

	if err != nil {
		in.bus.reader.refuse(kindEvents, m.Subject, err)
	}
	if newer {
		in.bus.reader.skipped(kindEvents, m.Subject)
	}
}

// nodeOf returns the node in a subject of events.
func nodeOf(subject string) (string, error) {
	node := subject[strings.LastIndexByte(subject, '.')+1:]
	if node == noNode {
		return "", nil
	}
	if !fleet.ValidName(node) {
		return "", fmt.Errorf("node %q must match [a-z0-9-]+ and have at most 63 characters", node)
	}
	return node, nil
}

// errCut means that a message ends within a field.
var errCut = errors.New("decode: the message is cut short")

// The numbers of the fields in Events and ReplayReply.
const (
	batchesField  protowire.Number = 1
	positionField protowire.Number = 2
)

// eachField calls use with each field in a message of Events or ReplayReply, until one is an error. The generated
// code would decode and copy all batches before the first is applied. newer is true if the message has fields of
// a newer release, which are skipped.
func eachField(message []byte, use func(number protowire.Number, value []byte) error) (newer bool, err error) {
	if isServerAnswer(message) {
		return false, errServerAnswer
	}
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return newer, errCut
		}
		field := message[n:]
		size := protowire.ConsumeFieldValue(number, kind, field)
		if size < 0 {
			return newer, errCut
		}
		message = field[size:]

		if number > positionField || kind != protowire.BytesType {
			newer = true
			continue
		}
		value, _ := protowire.ConsumeBytes(field)
		if err := use(number, value); err != nil {
			return newer, err
		}
	}
	return newer, nil
}
