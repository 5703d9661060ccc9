package bus

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/stator-project/stator/bus/busv1"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/kv/feed"
	"github.com/stator-project/stator/internal/kv/kvevent"
)

// noNode stands for the node in the subject of an agent without one. No node has this name.
const noNode = "_"

// eventSubject returns the subject of a node's events. "*" stands for any node.
func (b *Bus) eventSubject(node string) string { return b.subject("kv", cmp.Or(node, noNode)) }

// EncodeBatch returns the bytes of a batch or a mark, for [EventWriter.Add] and [Bus.ServeReplay]. It
// allocates the bytes alone. The node in the worker's name is not among them: the subject has it.
func EncodeBatch(e *feed.Message) []byte {
	m := busv1.BatchFromVTPool()
	defer m.ReturnToVTPool()

	fillBatch(m, e)
	return encode(m)
}

// fillBatch writes e into an empty message.
func fillBatch(m *busv1.Batch, e *feed.Message) {
	m.Worker = localName(e.Worker)
	m.Rank = uint32(e.Rank)
	m.Epoch = e.Epoch
	m.Seq = e.Seq
	m.Mark = e.Mark
	m.State = uint32(e.State)
	m.CaughtUp = e.CaughtUp
	if e.Mark {
		return
	}

	m.Seconds = e.Batch.Seconds
	m.Unknown = uint32(e.Batch.Unknown)

	for i := range e.Batch.Events {
		fillEvent(nextEvent(m), &e.Batch.Events[i])
	}
}

// localName returns a worker's name without its node.
func localName(worker string) string {
	_, local, hasNode := strings.Cut(worker, ".")
	if !hasNode {
		return worker
	}
	return local
}

// nextEvent appends an empty event to m. It uses one that an earlier message left behind, if there is
// one, because the buffers of its hashes are large enough already.
func nextEvent(m *busv1.Batch) *busv1.Event {
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

// batchDecoder decodes batches and marks. It reuses its memory: a batch is valid until the next call.
type batchDecoder struct {
	message busv1.Batch
	batch   kvevent.Batch
	// The hashes of the batch's events are parts of these two.
	hashes []kvevent.EngineHash
	blocks []blockhash.Block
}

// decode returns the batch or mark in data, of a worker of node. It checks every value. unknown is true for fields
// of a newer release.
func (d *batchDecoder) decode(node string, data []byte) (e feed.Message, unknown bool, err error) {
	d.batch.Reset()
	d.message.ResetVT()
	if err := decode(&d.message, data); err != nil {
		return feed.Message{}, false, err
	}

	m := &d.message
	worker := fleet.WorkerName(node, m.Worker)
	switch {
	case !fleet.ValidName(m.Worker):
		return feed.Message{}, false, fmt.Errorf("worker name %q must match [a-z0-9-]+ and have at most 63 characters", m.Worker)
	case m.Rank >= fleet.MaxRanks:
		return feed.Message{}, false, fmt.Errorf("rank is %d: it must be less than %d", m.Rank, fleet.MaxRanks)
	// A state of a newer release must not be read as another one: "exact" is a promise.
	case m.State > uint32(feed.Stale):
		return feed.Message{}, false, fmt.Errorf("state is %d: it must be at most %d", m.State, feed.Stale)
	}

	e = feed.Message{
		Worker: worker, Rank: int(m.Rank), Epoch: m.Epoch, Seq: m.Seq, Mark: m.Mark, State: feed.State(m.State), CaughtUp: m.CaughtUp,
		Batch: &d.batch,
	}
	if !m.Mark {
		err = d.readEvents()
	}
	return e, m.HasUnknown(), err
}

// readEvents fills the batch from the message.
func (d *batchDecoder) readEvents() error {
	// First check everything, so that a bad event leaves no others behind.
	m := &d.message
	for i, event := range m.Events {
		if err := checkEvent(event); err != nil {
			return fmt.Errorf("event %d: %w", i, err)
		}
	}

	// The hashes of all events share two buffers, which are used again for the next batch.
	d.batch.Rank = int(m.Rank)
	d.batch.Seconds = m.Seconds
	d.batch.Unknown = int(m.Unknown)
	d.hashes = d.hashes[:0]
	d.blocks = d.blocks[:0]

	for _, event := range m.Events {
		out := kvevent.Event{
			Kind: kvevent.Kind(event.Kind), Tier: fleet.Tier(event.Tier),
			Parent: kvevent.EngineHash(event.Parent), HasParent: event.HasParent,
			BlockSize: int(event.BlockSize), Window: int(event.Window), Group: int(event.Group),
		}
		d.hashes, out.Hashes = appendPart(d.hashes, event.Hashes)
		d.blocks, out.Blocks = appendPart(d.blocks, event.Blocks)
		d.batch.Events = append(d.batch.Events, out)
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
