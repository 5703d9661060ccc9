package bus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/stator-project/stator/bus/busv1"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/feed"
)

const (
	// answerTime is the longest time that an agent may take for each message of an answer.
	answerTime = 2 * time.Second
	// pageBytes is the part of a replay or a dump that one message carries. The rest of the message, up to the
	// largest that NATS accepts, is for the description and the protocol. A page has one batch at least.
	pageBytes = 512 << 10
)

// errNoAnswer is returned when an agent is silent for answerTime.
var errNoAnswer = errors.New("its agent does not answer")

// replaySubject returns the subject of requests for a worker's past batches in one epoch. With the epoch in it,
// no agent answers for an engine process that is not its own.
func (b *Bus) replaySubject(worker string, epoch uint64) string {
	return b.subject("rpc", worker, strconv.FormatUint(epoch, 10), "replay")
}

// ServeReplay answers requests for a worker's past batches in one epoch, page by page, until ctx ends. page must
// return the encoded batches of the rank that it still has from the number from on, in order, at least one and
// otherwise at most room bytes, and the end of the rank's events. Requests of one worker are answered one
// after the other.
func (b *Bus) ServeReplay(
	ctx context.Context, worker string, epoch uint64, page func(rank int, from uint64, room int) (batches [][]byte, end feed.Position),
) error {
	return b.control.subscribe(ctx, b.replaySubject(worker, epoch), func(m *nats.Msg) {
		var request busv1.ReplayRequest
		err := b.decodeRequest(&request, worker, m)
		if !b.reader.accept(kindReplay, m.Subject, &request, err) {
			return
		}

		batches, end := page(int(request.Rank), request.From, pageBytes)
		_ = b.control.nc.Publish(m.Reply, encodeReplay(batches, end))
	})
}

// encodeReplay returns the bytes of a ReplayReply.
func encodeReplay(batches [][]byte, end feed.Position) []byte {
	position := encode(&busv1.Position{Epoch: end.Epoch, Next: end.Next, State: uint32(end.State), CaughtUp: end.CaughtUp})
	reply := protowire.AppendTag(nil, positionField, protowire.BytesType)
	reply = protowire.AppendBytes(reply, position)
	for _, batch := range batches {
		reply = appendBatch(reply, batch)
	}
	return reply
}

// Replay requests a rank's batches from the number from on, from its worker's agent, and calls apply
// for each, in order. It returns the end of the rank's events when all have come, and an error when
// the agent is silent for two seconds. A message is valid during its call. The batches come in pages, so that
// a router never has more of a replay in memory than it has asked for, and an agent notices at once that a
// router has given up.
func (b *Bus) Replay(
	ctx context.Context, worker string, epoch uint64, rank int, from uint64, apply func(*feed.Message),
) (feed.Position, error) {
	r := replay{
		bus: b, subject: b.replaySubject(worker, epoch), worker: worker, node: fleet.NodeOf(worker), rank: rank, from: from, apply: apply,
	}
	for {
		end, isLast, err := r.page(ctx)
		switch {
		case err != nil:
			return feed.Position{}, fmt.Errorf("request a replay of %s/%d: %w", worker, rank, err)
		case isLast:
			return end, nil
		}
	}
}

// replay is a replay that is being received.
type replay struct {
	bus     *Bus
	subject string
	worker  string
	node    string
	rank    int
	from    uint64 // the number of the next batch
	apply   func(*feed.Message)
	decoder batchDecoder
	end     *busv1.Position // of the present page; nil before it was read
}

// page requests and applies one page. The last page reaches the end of the rank's events, or is empty: then the
// agent does not remember the batches.
func (r *replay) page(ctx context.Context) (end feed.Position, isLast bool, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, answerTime, errNoAnswer)
	defer cancel()
	m, err := r.bus.request(ctx, r.worker, r.subject, encode(&busv1.ReplayRequest{Rank: uint32(r.rank), From: r.from}))
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return end, false, errors.New("it has no agent")
	case errors.Is(err, context.DeadlineExceeded):
		return end, false, cmp.Or(context.Cause(ctx), err)
	case err != nil:
		return end, false, err
	}

	before := r.from
	r.end = nil
	newer, err := eachField(m.Data, r.applyField)
	switch {
	case err != nil:
		return end, false, err
	case r.end == nil:
		return end, false, errors.New("a page without a position")
	case newer:
		r.bus.reader.skipped(kindReplay, r.subject)
	}
	end, err = readPosition(r.end)
	return end, r.from >= end.Next || r.from == before, err
}

// applyField applies one field of a page.
func (r *replay) applyField(number protowire.Number, data []byte) error {
	if number == positionField {
		r.end = &busv1.Position{}
		return decode(r.end, data)
	}

	e, unknown, err := r.decoder.decode(r.node, data)
	if err != nil {
		return err
	}
	if unknown {
		r.bus.reader.skipped(kindReplay, r.subject)
	}
	if e.Seq < r.from || e.Mark {
		return fmt.Errorf("batch %d in a replay from %d", e.Seq, r.from)
	}

	r.from = e.Seq + 1
	r.apply(&e)
	return nil
}

// readPosition returns the position in m, and an error for a state that no release sends. A state of a newer
// release must not be read as another one, because "exact" is a promise.
func readPosition(m *busv1.Position) (feed.Position, error) {
	if m.State > uint32(feed.Stale) {
		return feed.Position{}, fmt.Errorf("state is %d: it must be at most %d", m.State, feed.Stale)
	}
	return feed.Position{Epoch: m.Epoch, Next: m.Next, State: feed.State(m.State), CaughtUp: m.CaughtUp}, nil
}

// receive returns the data of the next message. It waits for answerTime at most.
func receive(ctx context.Context, in <-chan *nats.Msg) ([]byte, error) {
	timeout := time.NewTimer(answerTime)
	defer timeout.Stop()

	select {
	case m := <-in:
		return m.Data, nil
	case <-timeout.C:
		return nil, errNoAnswer
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
