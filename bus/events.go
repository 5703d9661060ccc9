package bus

import (
	"context"
	"encoding/binary"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/tinylib/msgp/msgp"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/kv/feed"
	"github.com/stator-project/stator/internal/kv/kvevent"
)

// maxMessage is the largest message on the bus, as NATS servers take it by default.
const maxMessage = 1 << 20

func (b *Bus) eventSubject(worker, rank string) string {
	return "stator.v1." + b.cfg.Cluster + ".kv." + worker + "." + rank
}

// PublishEvents sends a batch to everyone who listens. A batch too large for one message is an
// error; listeners will see the gap and ask.
func (b *Bus) PublishEvents(e *feed.Message) error {
	msg := appendEvents(e)
	if len(msg) > maxMessage {
		return fmt.Errorf("publish events of %s: a batch of %d bytes exceeds the %d of a message", e.Worker, len(msg), maxMessage)
	}
	return b.nc.Publish(b.eventSubject(e.Worker, strconv.Itoa(e.Rank)), msg)
}

// SubscribeEvents calls apply for every batch of every rank until ctx ends. A listener that is
// too slow loses batches, which it sees by their sequence numbers.
func (b *Bus) SubscribeEvents(ctx context.Context, apply func(*feed.Message)) error {
	var batch kvevent.Batch
	return b.subscribe(ctx, b.eventSubject("*", "*"), func(m *nats.Msg) {
		e := feed.Message{Batch: &batch}
		if err := readEvents(m.Data, &e); err != nil {
			b.cfg.Log.Warn("events ignored", "subject", m.Subject, "err", err)
			return
		}
		apply(&e)
	})
}

// subscribe hands messages to handle, one at a time, until ctx ends.
func (b *Bus) subscribe(ctx context.Context, subject string, handle func(*nats.Msg)) error {
	in := make(chan *nats.Msg, 8192)
	sub, err := b.nc.ChanSubscribe(subject, in)
	if err != nil {
		return fmt.Errorf("subscribe to %s: %w", subject, err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	for {
		select {
		case m := <-in:
			handle(m)
		case <-ctx.Done():
			return nil
		}
	}
}

func (b *Bus) replaySubject(worker string) string {
	return "stator.v1." + b.cfg.Cluster + ".rpc." + worker + ".replay"
}

// ServeReplay answers requests for a worker's past batches until ctx ends: replay must call
// send for each batch of the rank it still has from seq on, in order, and say where it stands.
func (b *Bus) ServeReplay(ctx context.Context, worker string, replay func(rank int, from uint64, send func(*feed.Message)) feed.Position) error {
	return b.subscribe(ctx, b.replaySubject(worker), func(m *nats.Msg) {
		if len(m.Data) != 13 || m.Data[0] != version || m.Reply == "" {
			return
		}
		rank, from := binary.BigEndian.Uint32(m.Data[1:]), binary.BigEndian.Uint64(m.Data[5:])
		stands := replay(int(rank), from, func(e *feed.Message) {
			if msg := appendEvents(e); len(msg) <= maxMessage {
				_ = b.nc.Publish(m.Reply, msg)
			}
		})
		end := binary.BigEndian.AppendUint64([]byte{replayEnd}, stands.Epoch)
		end = binary.BigEndian.AppendUint64(end, stands.Next)
		connected := byte(0)
		if stands.Connected {
			connected = 1
		}
		_ = b.nc.Publish(m.Reply, append(end, connected))
	})
}

// replayEnd begins the message that ends a replay, where others have their version: epoch and
// next follow, eight bytes each, and a byte that is 1 while the agent is connected to the engine.
const replayEnd = 0xff

// Replay asks a worker's agent for a rank's batches from seq on and applies them in order. It
// returns when they have all come, with where the rank stands then, or an error when nothing
// came for two seconds.
func (b *Bus) Replay(ctx context.Context, worker string, rank int, from uint64, apply func(*feed.Message)) (feed.Position, error) {
	inbox := b.nc.NewInbox()
	in := make(chan *nats.Msg, 16384)
	sub, err := b.nc.ChanSubscribe(inbox, in)
	if err != nil {
		return feed.Position{}, fmt.Errorf("ask for events of %s: %w", worker, err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	ask := binary.BigEndian.AppendUint32([]byte{version}, uint32(rank))
	ask = binary.BigEndian.AppendUint64(ask, from)
	if err := b.nc.PublishRequest(b.replaySubject(worker), inbox, ask); err != nil {
		return feed.Position{}, fmt.Errorf("ask for events of %s: %w", worker, err)
	}
	var batch kvevent.Batch
	for {
		wait := time.NewTimer(2 * time.Second)
		select {
		case <-ctx.Done():
			wait.Stop()
			return feed.Position{}, ctx.Err()
		case <-wait.C:
			return feed.Position{}, fmt.Errorf("ask for events of %s: its agent does not answer", worker)
		case m := <-in:
			wait.Stop()
			if len(m.Data) == 0 {
				return feed.Position{}, fmt.Errorf("ask for events of %s: it has no agent", worker)
			}
			if len(m.Data) == 18 && m.Data[0] == replayEnd {
				return feed.Position{
					Epoch: binary.BigEndian.Uint64(m.Data[1:]), Next: binary.BigEndian.Uint64(m.Data[9:]), Connected: m.Data[17] == 1,
				}, nil
			}
			e := feed.Message{Batch: &batch}
			if err := readEvents(m.Data, &e); err != nil {
				return feed.Position{}, fmt.Errorf("ask for events of %s: %w", worker, err)
			}
			apply(&e)
		}
	}
}

// appendEvents writes a batch as an array; hashes are big-endian bytes, because an array of
// msgpack integers would be nine bytes each and slower to read.
func appendEvents(e *feed.Message) []byte {
	b := []byte{version}
	b = msgp.AppendArrayHeader(b, 7)
	b = msgp.AppendString(b, e.Worker)
	b = msgp.AppendInt(b, e.Rank)
	b = msgp.AppendUint64(b, e.Epoch)
	b = msgp.AppendUint64(b, e.Seq)
	if e.Mark {
		return msgp.AppendNil(msgp.AppendNil(msgp.AppendNil(b)))
	}
	b = msgp.AppendFloat64(b, e.Batch.Seconds)
	b = msgp.AppendInt(b, e.Batch.Unknown)
	b = msgp.AppendArrayHeader(b, uint32(len(e.Batch.Events)))
	for i := range e.Batch.Events {
		b = appendEvent(b, &e.Batch.Events[i])
	}
	return b
}

func appendEvent(b []byte, v *kvevent.Event) []byte {
	b = msgp.AppendArrayHeader(b, 8)
	b = msgp.AppendUint8(b, uint8(v.Kind))
	b = msgp.AppendUint8(b, uint8(v.Tier))
	if v.HasParent {
		b = msgp.AppendUint64(b, uint64(v.Parent))
	} else {
		b = msgp.AppendNil(b)
	}
	b = msgp.AppendInt(b, v.BlockSize)
	b = msgp.AppendInt(b, v.Window)
	b = msgp.AppendInt(b, v.Group)
	b = appendHashes(b, v.Hashes)
	return appendHashes(b, v.Blocks)
}

func appendHashes[T ~uint64](b []byte, hashes []T) []byte {
	b = msgp.AppendBytesHeader(b, uint32(8*len(hashes)))
	for _, h := range hashes {
		b = binary.BigEndian.AppendUint64(b, uint64(h))
	}
	return b
}

// reader reads msgpack and remembers the first error, so that layouts read as lists.
type reader struct {
	b   []byte
	err error
}

func read[T any](r *reader, next func([]byte) (T, []byte, error)) (v T) {
	if r.err == nil {
		v, r.b, r.err = next(r.b)
	}
	return v
}

func (r *reader) array(want uint32) {
	if n := read(r, msgp.ReadArrayHeaderBytes); r.err == nil && n != want {
		r.err = fmt.Errorf("an array of %d where %d are due", n, want)
	}
}

// readEvents fills e and its batch from a message. The batch owns what it holds.
func readEvents(msg []byte, e *feed.Message) error {
	b, err := body(msg)
	if err != nil {
		return err
	}
	r := &reader{b: b}
	e.Batch.Reset()
	r.array(7)
	e.Worker = read(r, msgp.ReadStringBytes)
	e.Rank = read(r, msgp.ReadIntBytes)
	e.Epoch = read(r, msgp.ReadUint64Bytes)
	e.Seq = read(r, msgp.ReadUint64Bytes)
	if e.Mark = r.err == nil && msgp.IsNil(r.b); !e.Mark {
		r.batch(e)
	}
	if r.err != nil {
		e.Batch.Reset()
		return fmt.Errorf("read events: %w", r.err)
	}
	if e.Rank < 0 || e.Rank >= fleet.MaxRanks || !fleet.ValidName(e.Worker) {
		e.Batch.Reset()
		return fmt.Errorf("read events: worker %q, rank %d make no sense", e.Worker, e.Rank)
	}
	return nil
}

func (r *reader) batch(e *feed.Message) {
	e.Batch.Rank = e.Rank
	e.Batch.Seconds = read(r, msgp.ReadFloat64Bytes)
	e.Batch.Unknown = read(r, msgp.ReadIntBytes)
	n := read(r, msgp.ReadArrayHeaderBytes)
	for range n {
		if r.err != nil {
			break
		}
		e.Batch.Events = append(e.Batch.Events, r.event())
	}
	if r.err == nil && e.Batch.Unknown < 0 {
		r.err = fmt.Errorf("%d unknown events make no sense", e.Batch.Unknown)
	}
}

func (r *reader) event() (v kvevent.Event) {
	r.array(8)
	v.Kind = kvevent.Kind(read(r, msgp.ReadUint8Bytes))
	v.Tier = fleet.Tier(read(r, msgp.ReadUint8Bytes))
	if r.err == nil && msgp.IsNil(r.b) {
		r.b, r.err = msgp.ReadNilBytes(r.b)
	} else {
		v.Parent, v.HasParent = kvevent.Engine(read(r, msgp.ReadUint64Bytes)), true
	}
	v.BlockSize = read(r, msgp.ReadIntBytes)
	v.Window = read(r, msgp.ReadIntBytes)
	v.Group = read(r, msgp.ReadIntBytes)
	v.Hashes = hashes[kvevent.Engine](r)
	v.Blocks = hashes[blockhash.Block](r)
	if r.err == nil && (v.Kind > kvevent.Cleared || v.Tier >= fleet.Tiers || v.BlockSize < 0 || v.Window < 0 || v.Group < 0) {
		r.err = fmt.Errorf("event kind %d, tier %d, block size %d, window %d, group %d make no sense", v.Kind, v.Tier, v.BlockSize, v.Window, v.Group)
	}
	if r.err == nil && len(v.Blocks) != 0 && len(v.Blocks) != len(v.Hashes) {
		r.err = fmt.Errorf("%d content hashes for %d blocks", len(v.Blocks), len(v.Hashes))
	}
	return v
}

func hashes[T ~uint64](r *reader) []T {
	raw := read(r, msgp.ReadBytesZC)
	if r.err == nil && len(raw)%8 != 0 {
		r.err = fmt.Errorf("%d bytes of hashes", len(raw))
	}
	if r.err != nil || len(raw) == 0 {
		return nil
	}
	out := make([]T, len(raw)/8)
	for i := range out {
		out[i] = T(binary.BigEndian.Uint64(raw[8*i:]))
	}
	return out
}
