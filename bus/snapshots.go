package bus

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/tinylib/msgp/msgp"

	"github.com/stator-project/stator/internal/kv/feed"
)

const (
	// pageBytes is what one answer carries of a dump; heads and the protocol need little more.
	pageBytes = 512 << 10
	// pagesAhead is how many pages are asked for before the first has come.
	pagesAhead = 4
	// maxDump bounds the dump of one rank: some 60 million blocks.
	maxDump = 1 << 30
	// answerTime is how long an agent may take for an answer.
	answerTime = 2 * time.Second
)

// ErrSnapshotGone is returned when the agent drops a snapshot while a router pulls it.
var ErrSnapshotGone = errors.New("the agent no longer keeps the snapshot")

func (b *Bus) snapshotSubject(worker string) string {
	return "stator.v1." + b.cfg.Cluster + ".rpc." + worker + ".snapshot"
}

// ServeSnapshots answers requests for snapshots of a worker until ctx ends. take returns one of
// the rank, for id 0, or that very one; nil where there is none. Many may share one: its Dump
// is only read.
func (b *Bus) ServeSnapshots(ctx context.Context, worker string, take func(rank int, id uint64) *feed.Snapshot) error {
	return b.subscribe(ctx, b.snapshotSubject(worker), func(m *nats.Msg) {
		if len(m.Data) != 21 || m.Data[0] != version || m.Reply == "" {
			return
		}
		rank, id, at := binary.BigEndian.Uint32(m.Data[1:]), binary.BigEndian.Uint64(m.Data[5:]), binary.BigEndian.Uint64(m.Data[13:])
		s := take(int(rank), id)
		answer := []byte{version}
		switch {
		case s == nil || at > uint64(len(s.Dump)):
		case id == 0:
			answer = appendSnapshot(answer, s)
		default:
			answer = append(answer, s.Dump[at:min(at+pageBytes, uint64(len(s.Dump)))]...)
		}
		_ = b.nc.Publish(m.Reply, answer)
	})
}

// Snapshot pulls a rank's snapshot from its worker's agent. Before its pages are pulled, admit is
// told the size of the dump and may wait or refuse: then its error is returned.
func (b *Bus) Snapshot(ctx context.Context, worker string, rank int, admit func(ctx context.Context, size int) error) (*feed.Snapshot, error) {
	s, err := b.pullSnapshot(ctx, worker, rank, admit)
	if err != nil {
		return nil, fmt.Errorf("ask for a snapshot of %s: %w", worker, err)
	}
	return s, nil
}

func (b *Bus) pullSnapshot(ctx context.Context, worker string, rank int, admit func(ctx context.Context, size int) error) (*feed.Snapshot, error) {
	answer, err := b.askSnapshot(ctx, worker, rank, 0, 0)
	if err != nil {
		return nil, err
	}
	if len(answer) == 0 {
		return nil, feed.ErrNoSnapshot
	}
	s, size, err := readSnapshot(answer)
	if err != nil {
		return nil, err
	}
	s.Worker, s.Rank = worker, rank
	if err := admit(ctx, size); err != nil {
		return nil, err
	}
	if len(s.Dump) == size {
		return s, nil
	}
	dump := make([]byte, size)
	n := copy(dump, s.Dump)
	s.Dump = dump
	return s, b.pullPages(ctx, s, n)
}

// pullPages fills the dump from byte from on, several pages at a time: they come in the order in
// which they were asked for.
func (b *Bus) pullPages(ctx context.Context, s *feed.Snapshot, from int) error {
	inbox := b.nc.NewInbox()
	in := make(chan *nats.Msg, pagesAhead)
	sub, err := b.nc.ChanSubscribe(inbox, in)
	if err != nil {
		return err
	}
	defer func() { _ = sub.Unsubscribe() }()
	asked := from
	for got := from; got < len(s.Dump); {
		for ; asked < len(s.Dump) && asked < got+pagesAhead*pageBytes; asked += pageBytes {
			if err := b.nc.PublishRequest(b.snapshotSubject(s.Worker), inbox, askFor(s.Rank, s.ID, asked)); err != nil {
				return err
			}
		}
		m, err := next(ctx, in)
		if err != nil {
			return err
		}
		page, err := body(m)
		switch {
		case err != nil:
			return err
		case len(page) == 0:
			return ErrSnapshotGone
		case len(page) != min(pageBytes, len(s.Dump)-got):
			return fmt.Errorf("a page of %d bytes at %d of %d makes no sense", len(page), got, len(s.Dump))
		}
		got += copy(s.Dump[got:], page)
	}
	return nil
}

func (b *Bus) askSnapshot(ctx context.Context, worker string, rank int, id uint64, at int) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	m, err := b.nc.RequestWithContext(ctx, b.snapshotSubject(worker), askFor(rank, id, at))
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return nil, feed.ErrNoSnapshot
	case err != nil:
		return nil, err
	}
	return body(m.Data)
}

func askFor(rank int, id uint64, at int) []byte {
	ask := binary.BigEndian.AppendUint32([]byte{version}, uint32(rank))
	ask = binary.BigEndian.AppendUint64(ask, id)
	return binary.BigEndian.AppendUint64(ask, uint64(at))
}

// next returns the next message's data.
func next(ctx context.Context, in <-chan *nats.Msg) ([]byte, error) {
	wait := time.NewTimer(answerTime)
	defer wait.Stop()
	select {
	case m := <-in:
		if len(m.Data) == 0 { // the server says that nobody listens
			return nil, ErrSnapshotGone
		}
		return m.Data, nil
	case <-wait.C:
		return nil, errors.New("its agent does not answer")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// appendSnapshot writes what is said of a snapshot, and its first page.
func appendSnapshot(b []byte, s *feed.Snapshot) []byte {
	b = msgp.AppendArrayHeader(b, 8)
	b = msgp.AppendUint64(b, s.Epoch)
	b = msgp.AppendUint64(b, s.ID)
	b = msgp.AppendUint64(b, s.Next)
	b = msgp.AppendFloat64(b, s.Seconds)
	b = msgp.AppendBool(b, s.Complete)
	b = msgp.AppendInt(b, s.BlockSize)
	b = msgp.AppendInt(b, len(s.Dump))
	return msgp.AppendBytes(b, s.Dump[:min(len(s.Dump), pageBytes)])
}

// readSnapshot reads what appendSnapshot wrote; size is that of the whole dump, of which s holds
// the first page.
func readSnapshot(msg []byte) (s *feed.Snapshot, size int, err error) {
	r := &reader{b: msg}
	r.array(8)
	s = &feed.Snapshot{
		Epoch: read(r, msgp.ReadUint64Bytes), ID: read(r, msgp.ReadUint64Bytes), Next: read(r, msgp.ReadUint64Bytes),
		Seconds: read(r, msgp.ReadFloat64Bytes), Complete: read(r, msgp.ReadBoolBytes), BlockSize: read(r, msgp.ReadIntBytes),
	}
	size = read(r, msgp.ReadIntBytes)
	s.Dump = read(r, msgp.ReadBytesZC)
	if r.err == nil && (s.ID == 0 || size < 0 || size > maxDump || len(s.Dump) != min(size, pageBytes) ||
		s.BlockSize < 0 || s.BlockSize > 1<<16 || math.IsNaN(s.Seconds) || math.IsInf(s.Seconds, 0)) {
		r.err = fmt.Errorf("id %d, size %d, first page %d, block size %d, time %g make no sense", s.ID, size, len(s.Dump), s.BlockSize, s.Seconds)
	}
	if r.err != nil {
		return nil, 0, fmt.Errorf("read snapshot: %w", r.err)
	}
	return s, size, nil
}
