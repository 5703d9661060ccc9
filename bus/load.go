package bus

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/tinylib/msgp/msgp"
)

// Load is what an engine says of one of its ranks, relayed by its agent.
type Load struct {
	Worker           string
	Rank             int
	Epoch            uint64
	Running, Waiting int
	KVUsage          float64 // share of the KV cache in use, 0 to 1
	// PrefixQueries and PrefixHits count prompt tokens since the engine started: those it looked
	// up in its cache, and those it found there. Both are 0 where it does not say.
	PrefixQueries, PrefixHits uint64
	// Gaps counts the gaps between tokens of answers since the engine started, and GapTime is their
	// sum. Both are 0 where it does not say.
	Gaps    uint64
	GapTime time.Duration
}

func (b *Bus) loadSubject(worker string) string {
	return "stator.v1." + b.cfg.Cluster + ".load." + worker
}

// PublishLoad tells everyone who listens. The next sample replaces it, so none is repeated.
func (b *Bus) PublishLoad(l Load) error {
	return b.nc.Publish(b.loadSubject(l.Worker), appendLoad(nil, l))
}

// SubscribeLoad calls apply for every sample until ctx ends.
func (b *Bus) SubscribeLoad(ctx context.Context, apply func(Load)) error {
	return b.subscribe(ctx, b.loadSubject("*"), func(m *nats.Msg) {
		l, err := readLoad(m.Data)
		if err != nil {
			b.cfg.Log.Warn("load ignored", "subject", m.Subject, "err", err)
			return
		}
		apply(l)
	})
}

func appendLoad(b []byte, l Load) []byte {
	b = append(b, version)
	b = msgp.AppendArrayHeader(b, 10)
	b = msgp.AppendString(b, l.Worker)
	b = msgp.AppendInt(b, l.Rank)
	b = msgp.AppendUint64(b, l.Epoch)
	b = msgp.AppendInt(b, l.Running)
	b = msgp.AppendInt(b, l.Waiting)
	b = msgp.AppendFloat64(b, l.KVUsage)
	b = msgp.AppendUint64(b, l.PrefixQueries)
	b = msgp.AppendUint64(b, l.PrefixHits)
	b = msgp.AppendUint64(b, l.Gaps)
	return msgp.AppendInt64(b, int64(l.GapTime))
}

func readLoad(msg []byte) (l Load, err error) {
	b, err := body(msg)
	if err != nil {
		return l, err
	}
	r := &reader{b: b}
	r.array(10)
	l.Worker = read(r, msgp.ReadStringBytes)
	l.Rank = read(r, msgp.ReadIntBytes)
	l.Epoch = read(r, msgp.ReadUint64Bytes)
	l.Running = read(r, msgp.ReadIntBytes)
	l.Waiting = read(r, msgp.ReadIntBytes)
	l.KVUsage = read(r, msgp.ReadFloat64Bytes)
	l.PrefixQueries = read(r, msgp.ReadUint64Bytes)
	l.PrefixHits = read(r, msgp.ReadUint64Bytes)
	l.Gaps = read(r, msgp.ReadUint64Bytes)
	l.GapTime = time.Duration(read(r, msgp.ReadInt64Bytes))
	if r.err == nil && (l.Running < 0 || l.Waiting < 0 || l.KVUsage < 0 || l.KVUsage > 1) {
		r.err = fmt.Errorf("running %d, waiting %d, usage %g make no sense", l.Running, l.Waiting, l.KVUsage)
	}
	if r.err != nil {
		return Load{}, fmt.Errorf("read load: %w", r.err)
	}
	return l, nil
}
