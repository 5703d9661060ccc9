package bus

import (
	"context"
	"fmt"
	"strconv"

	"github.com/nats-io/nats.go"

	"github.com/stator-project/stator/bus/busv1"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/kv/feed"
	"github.com/stator-project/stator/internal/kv/kvevent"
)

// eventSubject returns the subject of a rank's events.
func (b *Bus) eventSubject(worker, rank string) string {
	return b.subject("kv", worker, rank)
}

// PublishEvents publishes a batch, or a mark, to every subscriber. A batch that is too large for one
// message is an error: subscribers will find the gap and request a replay, which lacks that batch too, and
// then pull a snapshot. The batch is only read during the call.
func (b *Bus) PublishEvents(e *feed.Message) error {
	data := encodeEvents(e)
	if len(data) > maxMessage {
		return fmt.Errorf("publish events of %s: a batch of %d bytes exceeds the %d of a message", e.Worker, len(data), maxMessage)
	}
	return b.nc.Publish(b.eventSubject(e.Worker, strconv.Itoa(e.Rank)), data)
}

// SubscribeEvents calls apply for every batch and mark of every rank until ctx ends. The message and
// its batch are valid during the call; the hashes of its events may be kept. A subscriber that is too
// slow loses batches, and finds that by their sequence numbers.
func (b *Bus) SubscribeEvents(ctx context.Context, apply func(*feed.Message)) error {
	// Both are used again for every message. Callbacks of one subscription run one at a time.
	received := &busv1.Events{}
	var batch kvevent.Batch

	// A worker's name has one token or two, and the rank is another.
	return b.subscribe(ctx, b.subject("kv", ">"), func(m *nats.Msg) {
		received.ResetVT()
		e := feed.Message{Batch: &batch}
		if err := decodeEvents(received, m.Data, &e); err != nil {
			b.reader.refuse(kindEvents, m.Subject, err)
			return
		}
		b.reader.observe(kindEvents, m.Subject, received)
		apply(&e)
	})
}

// encodeEvents returns the bytes of a batch or mark. It allocates the bytes alone.
func encodeEvents(e *feed.Message) []byte {
	m := busv1.EventsFromVTPool()
	defer m.ReturnToVTPool()

	fillEvents(m, e)
	return encode(m)
}

// fillEvents writes e into an empty message.
func fillEvents(m *busv1.Events, e *feed.Message) {
	m.Worker = e.Worker
	m.Rank = uint32(e.Rank)
	m.Epoch = e.Epoch
	m.Seq = e.Seq
	m.Mark = e.Mark
	m.State = uint32(e.State)
	if e.Mark {
		return
	}

	m.Seconds = e.Batch.Seconds
	m.Unknown = uint32(e.Batch.Unknown)

	for i := range e.Batch.Events {
		fillEvent(nextEvent(m), &e.Batch.Events[i])
	}
}

// nextEvent appends an empty event to m. It uses one that an earlier message left behind, if there is
// one, because the buffers of its hashes are large enough already.
func nextEvent(m *busv1.Events) *busv1.Event {
	n := len(m.Events)
	if n < cap(m.Events) {
		m.Events = m.Events[:n+1]
		if m.Events[n] != nil {
			return m.Events[n]
		}
		m.Events[n] = &busv1.Event{}
		return m.Events[n]
	}

	m.Events = append(m.Events, &busv1.Event{})
	return m.Events[n]
}

// fillEvent writes e into an empty event.
func fillEvent(m *busv1.Event, e *kvevent.Event) {
	m.Kind = uint32(e.Kind)
	m.Tier = uint32(e.Tier)
	m.HasParent = e.HasParent
	if e.HasParent {
		m.Parent = uint64(e.Parent)
	}

	m.BlockSize = uint32(e.BlockSize)
	m.Window = uint32(e.Window)
	m.Group = uint32(e.Group)
	m.Hashes = appendNumbers(m.Hashes, e.Hashes)
	m.Blocks = appendNumbers(m.Blocks, e.Blocks)
}

// appendNumbers appends hashes to dst as plain numbers.
func appendNumbers[T ~uint64](dst []uint64, hashes []T) []uint64 {
	for _, h := range hashes {
		dst = append(dst, uint64(h))
	}
	return dst
}

// decodeEvents fills e and its batch from data, by way of the empty message m. After an error the batch
// is empty.
func decodeEvents(m *busv1.Events, data []byte, e *feed.Message) error {
	e.Batch.Reset()
	if err := decode(m, data); err != nil {
		return err
	}
	return readEvents(m, e)
}

// readEvents fills e and its batch from m, and checks every value. All hashes of the batch share two
// allocations, which belong to the batch.
func readEvents(m *busv1.Events, e *feed.Message) error {
	if !fleet.ValidWorkerName(m.Worker) {
		return fmt.Errorf("worker name %q must be \"local\" or \"node.local\", each part of [a-z0-9-]+", m.Worker)
	}
	if m.Rank >= fleet.MaxRanks {
		return fmt.Errorf("rank is %d: it must be less than %d", m.Rank, fleet.MaxRanks)
	}

	// A state of a newer release must not be read as another one: "exact" is a promise.
	if m.State > uint32(feed.Stale) {
		return fmt.Errorf("state is %d: it must be at most %d", m.State, feed.Stale)
	}

	// A mark has no batch: Seq is the number of the batch that comes next.
	e.Worker = m.Worker
	e.Rank = int(m.Rank)
	e.Epoch = m.Epoch
	e.Seq = m.Seq
	e.Mark = m.Mark
	e.State = feed.State(m.State)
	if m.Mark {
		return nil
	}

	// First check everything, so that a bad event leaves no others behind, and count the hashes, so that
	// one allocation has room for those of the whole batch.
	engineHashes, contentHashes := 0, 0
	for i, event := range m.Events {
		if err := checkEvent(event); err != nil {
			return fmt.Errorf("event %d: %w", i, err)
		}
		engineHashes += len(event.Hashes)
		contentHashes += len(event.Blocks)
	}

	e.Batch.Rank = e.Rank
	e.Batch.Seconds = m.Seconds
	e.Batch.Unknown = int(m.Unknown)

	hashes := make([]kvevent.EngineHash, 0, engineHashes)
	blocks := make([]blockhash.Block, 0, contentHashes)
	for _, event := range m.Events {
		out := kvevent.Event{
			Kind: kvevent.Kind(event.Kind), Tier: fleet.Tier(event.Tier),
			Parent: kvevent.EngineHash(event.Parent), HasParent: event.HasParent,
			BlockSize: int(event.BlockSize), Window: int(event.Window), Group: int(event.Group),
		}
		hashes, out.Hashes = appendPart(hashes, event.Hashes)
		blocks, out.Blocks = appendPart(blocks, event.Blocks)
		e.Batch.Events = append(e.Batch.Events, out)
	}

	return nil
}

// appendPart appends numbers to all and returns it with the part that was appended. The part is nil for
// no numbers, and cannot grow into what follows it.
func appendPart[T ~uint64](all []T, numbers []uint64) (extended, part []T) {
	if len(numbers) == 0 {
		return all, nil
	}

	from := len(all)

	for _, n := range numbers {
		all = append(all, T(n))
	}
	return all, all[from:len(all):len(all)]
}

// maxGroupNumber bounds block sizes, windows and groups, which are numbers of tokens or groups.
const maxGroupNumber = 1 << 30

// checkEvent returns an error for values that no release sends. Tokens and groups are bounded because int
// has 32 bits on some machines.
func checkEvent(e *busv1.Event) error {
	switch {
	case e.Kind > uint32(kvevent.Cleared):
		return fmt.Errorf("kind is %d: it must be at most %d", e.Kind, kvevent.Cleared)
	case e.Tier >= uint32(fleet.Tiers):
		return fmt.Errorf("tier is %d: it must be less than %d", e.Tier, fleet.Tiers)
	case e.BlockSize > maxGroupNumber || e.Window > maxGroupNumber || e.Group > maxGroupNumber:
		return fmt.Errorf("block size %d, window %d and group %d must be at most %d", e.BlockSize, e.Window, e.Group, maxGroupNumber)
	case len(e.Blocks) != 0 && len(e.Blocks) != len(e.Hashes):
		return fmt.Errorf("%d content hashes for %d blocks: there must be one for each, or none", len(e.Blocks), len(e.Hashes))
	}
	return nil
}
