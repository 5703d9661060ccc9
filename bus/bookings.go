package bus

import (
	"context"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/tinylib/msgp/msgp"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/route/peers"
)

func (b *Bus) bookSubject(replica string) string {
	return "stator.v1." + b.cfg.Cluster + ".book." + replica
}

// PublishBookings tells the other replicas. A message that is lost is made good by a later one.
func (b *Bus) PublishBookings(m *peers.Update) error {
	return b.nc.Publish(b.bookSubject(m.Replica), appendBookings(nil, m))
}

// SubscribeBookings calls apply for every message of every replica until ctx ends. The message is
// valid during the call.
func (b *Bus) SubscribeBookings(ctx context.Context, apply func(*peers.Update)) error {
	var read peers.Update
	return b.subscribe(ctx, b.bookSubject("*"), func(m *nats.Msg) {
		if err := readBookings(m.Data, &read); err != nil {
			b.cfg.Log.Warn("bookings ignored", "subject", m.Subject, "err", err)
			return
		}
		apply(&read)
	})
}

func appendBookings(b []byte, m *peers.Update) []byte {
	b = append(b, version)
	b = msgp.AppendArrayHeader(b, 5)
	b = msgp.AppendString(b, m.Replica)
	b = msgp.AppendUint64(b, m.Seq)
	b = msgp.AppendBool(b, m.Whole)
	b = msgp.AppendUint64(b, m.Digest)
	b = msgp.AppendArrayHeader(b, uint32(7*len(m.Ranks)))
	for i := range m.Ranks {
		a := &m.Ranks[i]
		b = msgp.AppendString(b, a.Worker)
		b = msgp.AppendUint64(b, a.Epoch)
		b = msgp.AppendInt(b, a.Rank)
		b = msgp.AppendInt64(b, a.Amount.Requests)
		b = msgp.AppendInt64(b, a.Amount.PrefillTokens)
		b = msgp.AppendInt64(b, a.Amount.DecodeBlocks)
		b = msgp.AppendInt64(b, int64(a.Amount.PrefillTime))
	}
	return b
}

func readBookings(msg []byte, m *peers.Update) error {
	b, err := body(msg)
	if err != nil {
		return err
	}
	r := &reader{b: b}
	r.array(5)
	m.Replica = read(r, msgp.ReadStringBytes)
	m.Seq = read(r, msgp.ReadUint64Bytes)
	m.Whole = read(r, msgp.ReadBoolBytes)
	m.Digest = read(r, msgp.ReadUint64Bytes)
	n := read(r, msgp.ReadArrayHeaderBytes)
	m.Ranks = m.Ranks[:0]
	for i := uint32(0); i+7 <= n && r.err == nil; i += 7 {
		m.Ranks = append(m.Ranks, peers.RankAmount{
			Worker: read(r, msgp.ReadStringBytes), Epoch: read(r, msgp.ReadUint64Bytes), Rank: read(r, msgp.ReadIntBytes),
			Amount: fleet.Amount{
				Requests: read(r, msgp.ReadInt64Bytes), PrefillTokens: read(r, msgp.ReadInt64Bytes), DecodeBlocks: read(r, msgp.ReadInt64Bytes),
				PrefillTime: time.Duration(read(r, msgp.ReadInt64Bytes)),
			},
		})
	}
	return r.err
}
