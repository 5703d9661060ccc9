package bus

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/stator-project/stator/bus/busv1"
	"github.com/stator-project/stator/internal/kv/feed"
	"github.com/stator-project/stator/internal/kv/kvevent"
)

const (
	// answerTime is how long an agent may take for each message of an answer.
	answerTime = 2 * time.Second
	// replayBuffer is how many messages of a replay may wait: more than the 10,000 batches that an
	// agent keeps for a rank.
	replayBuffer = 16384
)

// errNoAnswer is returned when an agent is silent for answerTime.
var errNoAnswer = errors.New("its agent does not answer")

// replaySubject returns the subject of requests for a worker's past batches in one epoch. With the epoch in it,
// no agent answers for an engine process that is not its own.
func (b *Bus) replaySubject(worker string, epoch uint64) string {
	return b.subject("rpc", worker, strconv.FormatUint(epoch, 10), "replay")
}

// ServeReplay answers requests for a worker's past batches in one epoch until ctx ends. replay must call send for
// each batch of the rank that it still has from the number from on, in order, and return the end of
// the rank's events. Requests of one worker are answered one after the other; a request that waits for
// too long is given up by its router, and answered in vain.
func (b *Bus) ServeReplay(
	ctx context.Context, worker string, epoch uint64, replay func(rank int, from uint64, send func(*feed.Message)) feed.Position,
) error {
	return b.subscribe(ctx, b.replaySubject(worker, epoch), func(m *nats.Msg) {
		var request busv1.ReplayRequest
		if err := decodeRequest(&request, m); err != nil {
			b.reader.refuse(kindReplay, m.Subject, err)
			return
		}
		b.reader.observe(kindReplay, m.Subject, &request)

		// The batches go straight to the inbox of the router that requested them. The end follows them
		// on the same subject, so NATS keeps the order.
		end := replay(int(request.Rank), request.From, func(e *feed.Message) {
			// A batch that is too large for a message was not published either.
			if data := encodeReplayed(e); len(data) <= maxMessage {
				_ = b.nc.Publish(m.Reply, data)
			}
		})
		_ = b.nc.Publish(m.Reply, encode(&busv1.ReplayReply{Content: &busv1.ReplayReply_End{
			End: &busv1.Position{Epoch: end.Epoch, Next: end.Next, Connected: end.Connected, State: uint32(end.State)},
		}}))
	})
}

// decodeRequest fills an empty request from a message that must name where to send the answer.
func decodeRequest(request message, m *nats.Msg) error {
	if m.Reply == "" {
		return errors.New("a request must name a reply subject")
	}
	return decode(request, m.Data)
}

// encodeReplayed returns the bytes of a reply with a batch.
func encodeReplayed(e *feed.Message) []byte {
	m := busv1.EventsFromVTPool()
	defer m.ReturnToVTPool()

	fillEvents(m, e)
	return encode(&busv1.ReplayReply{Content: &busv1.ReplayReply_Events{Events: m}})
}

// Replay requests a rank's batches from the number from on, from its worker's agent, and calls apply
// for each, in order. It returns the end of the rank's events when all have come, and an error when
// the agent is silent for two seconds. A message is valid during its call.
func (b *Bus) Replay(
	ctx context.Context, worker string, epoch uint64, rank int, from uint64, apply func(*feed.Message),
) (feed.Position, error) {
	end, err := b.replay(ctx, b.replaySubject(worker, epoch), rank, from, apply)
	if err != nil {
		return feed.Position{}, fmt.Errorf("request a replay of %s/%d: %w", worker, rank, err)
	}
	return end, nil
}

// replay is Replay without the context of its errors.
func (b *Bus) replay(ctx context.Context, subject string, rank int, from uint64, apply func(*feed.Message)) (end feed.Position, err error) {
	// The inbox is a subject for this answer alone. It must exist before the request is sent.
	inbox := b.nc.NewInbox()
	in := make(chan *nats.Msg, replayBuffer)
	sub, err := b.nc.ChanSubscribe(inbox, in)
	if err != nil {
		return end, err
	}

	defer func() { _ = sub.Unsubscribe() }()

	request := busv1.ReplayRequest{Rank: uint32(rank), From: from}
	if err := b.nc.PublishRequest(subject, inbox, encode(&request)); err != nil {
		return end, err
	}

	var batch kvevent.Batch
	for {
		data, err := receive(ctx, in)
		if err != nil {
			return end, err
		}
		// An empty message comes from the server itself.
		if len(data) == 0 { // NATS answers for a subject without subscribers
			return end, errors.New("it has no agent")
		}

		var reply busv1.ReplayReply
		if err := decode(&reply, data); err != nil {
			return end, err
		}
		b.reader.observe(kindReplay, inbox, &reply)

		switch content := reply.Content.(type) {
		case *busv1.ReplayReply_End:
			return readPosition(content.End)
		case *busv1.ReplayReply_Events:
			e := feed.Message{Batch: &batch}
			batch.Reset()
			if err := readEvents(content.Events, &e); err != nil {
				batch.Reset()
				return end, err
			}
			apply(&e)
		}
	}
}

// readPosition returns the position in m, and an error for a state that no release sends. A state of a newer
// release must not be read as another one, because "exact" is a promise.
func readPosition(m *busv1.Position) (feed.Position, error) {
	if m.State > uint32(feed.Stale) {
		return feed.Position{}, fmt.Errorf("state is %d: it must be at most %d", m.State, feed.Stale)
	}
	return feed.Position{Epoch: m.Epoch, Next: m.Next, State: feed.State(m.State), Connected: m.Connected}, nil
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
