package bus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/stator-project/stator/bus/busv1"
	"github.com/stator-project/stator/internal/kv/feed"
)

const (
	// pagesAhead is the number of pages that are requested before the first has come.
	pagesAhead = 4
	// maxDump bounds the dump of one rank in bytes: some 60 million blocks.
	maxDump = 1 << 30
	// maxBlockSize bounds the tokens of a block.
	maxBlockSize = 1 << 16
)

// ErrSnapshotGone is returned when the agent drops a snapshot while a router pulls it.
var ErrSnapshotGone = errors.New("the agent no longer keeps the snapshot")

// snapshotSubject returns the subject of requests for snapshots of a worker's ranks in one epoch.
func (b *Bus) snapshotSubject(worker string, epoch uint64) string {
	return b.subject("rpc", worker, strconv.FormatUint(epoch, 10), "snapshot")
}

// ServeSnapshots answers requests for snapshots of a worker's ranks in one epoch, page by page, until ctx ends. get
// returns a snapshot of the rank for id 0, and for any other id the snapshot that has it; nil if there is none.
// Several requests may share a snapshot: its Dump is only read.
func (b *Bus) ServeSnapshots(ctx context.Context, worker string, epoch uint64, get func(rank int, id uint64) *feed.Snapshot) error {
	return b.control.subscribe(ctx, b.snapshotSubject(worker, epoch), func(m *nats.Msg) { b.answerSnapshot(m, worker, get) })
}

// answerSnapshot answers one request for a snapshot of a worker's ranks.
func (b *Bus) answerSnapshot(m *nats.Msg, worker string, get func(rank int, id uint64) *feed.Snapshot) {
	var request busv1.SnapshotRequest
	err := b.decodeRequest(&request, worker, m)
	if !b.reader.accept(kindSnapshot, m.Subject, &request, err) {
		return
	}

	// The answer to an unknown snapshot is an empty reply, so that the router need not wait for a
	// time-out.
	s := get(int(request.Rank), request.Id)
	_ = b.control.nc.Publish(m.Reply, encode(snapshotReply(s, &request)))
}

// replicaSubject returns the subject of requests to a replica of the router for snapshots of a worker's ranks in one epoch.
func (b *Bus) replicaSubject(replica, worker string, epoch uint64) string {
	return b.subject("index", replica, worker, strconv.FormatUint(epoch, 10))
}

// ServeReplicas is ServeSnapshots for the other replicas of a router, and the ranks of all workers that it follows.
func (b *Bus) ServeReplicas(
	ctx context.Context, replica string, get func(worker string, epoch uint64, rank int, id uint64) *feed.Snapshot,
) error {
	prefix := b.subject("index", replica) + "."
	return b.control.subscribe(ctx, prefix+">", func(m *nats.Msg) {
		worker, epoch, err := readReplicaSubject(strings.TrimPrefix(m.Subject, prefix))
		if err != nil {
			b.reader.refuse(kindSnapshot, m.Subject, err)
			return
		}
		b.answerSnapshot(m, worker, func(rank int, id uint64) *feed.Snapshot { return get(worker, epoch, rank, id) })
	})
}

// readReplicaSubject reads the end of a subject that replicaSubject has made.
func readReplicaSubject(text string) (worker string, epoch uint64, err error) {
	at := strings.LastIndexByte(text, '.')
	if at < 1 {
		return "", 0, errors.New("a request to a replica must name a worker and its epoch")
	}
	epoch, err = strconv.ParseUint(text[at+1:], 10, 64)
	return text[:at], epoch, err
}

// snapshotReply returns the answer to a request: empty without a snapshot, its description and first
// page for id 0, or the page at the offset.
func snapshotReply(s *feed.Snapshot, request *busv1.SnapshotRequest) *busv1.SnapshotReply {
	if s == nil || request.Offset > uint64(len(s.Dump)) {
		return &busv1.SnapshotReply{}
	}
	if request.Id != 0 {
		end := min(request.Offset+pageBytes, uint64(len(s.Dump)))
		return &busv1.SnapshotReply{Page: s.Dump[request.Offset:end]}
	}
	return &busv1.SnapshotReply{
		Snapshot: &busv1.Snapshot{
			Id: s.ID, Epoch: s.Epoch, Next: s.Next, Seconds: s.Seconds, Complete: s.Complete,
			BlockSize: uint32(s.BlockSize), Size: uint64(len(s.Dump)),
		},
		Page: s.Dump[:min(len(s.Dump), pageBytes)],
	}
}

// Snapshot pulls a snapshot of a rank from its worker's agent. admit gets the size of the dump in bytes
// before the pages are pulled. It may wait, or return an error, which Snapshot then returns. Other errors
// wrap feed.ErrNoSnapshot when the agent has none or there is no agent, and ErrSnapshotGone when the agent
// dropped it meanwhile.
func (b *Bus) Snapshot(
	ctx context.Context, worker string, epoch uint64, rank int, admit func(ctx context.Context, size int) error,
) (*feed.Snapshot, error) {
	return b.pullSnapshot(ctx, b.snapshotSubject(worker, epoch), worker, rank, admit)
}

// ReplicaSnapshot is Snapshot of another replica of the router, which follows the rank itself.
func (b *Bus) ReplicaSnapshot(
	ctx context.Context, replica, worker string, epoch uint64, rank int, admit func(ctx context.Context, size int) error,
) (*feed.Snapshot, error) {
	return b.pullSnapshot(ctx, b.replicaSubject(replica, worker, epoch), worker, rank, admit)
}

// pullSnapshot is Snapshot at a subject. A small dump comes whole with the first answer; a larger one is pulled page by page.
func (b *Bus) pullSnapshot(
	ctx context.Context, subject, worker string, rank int, admit func(ctx context.Context, size int) error,
) (s *feed.Snapshot, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("pull a snapshot of %s/%d: %w", worker, rank, err)
		}
	}()
	reply, err := b.requestSnapshot(ctx, worker, subject, rank)
	if err != nil {
		return nil, err
	}

	s, size, err := readSnapshot(reply)
	if err != nil {
		return nil, err
	}

	s.Worker = worker
	s.Rank = rank

	// The dump may be large, and other ranks are pulled at the same time: the caller decides when there
	// is room for it.
	if err := admit(ctx, size); err != nil {
		return nil, err
	}

	first := s.Dump
	if len(first) == size {
		return s, nil
	}

	s.Dump = make([]byte, size)
	return s, b.pullPages(ctx, subject, s, copy(s.Dump, first))
}

// requestSnapshot returns the description of a snapshot with its first page.
func (b *Bus) requestSnapshot(ctx context.Context, worker, subject string, rank int) (*busv1.SnapshotReply, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, answerTime, errNoAnswer)
	defer cancel()

	m, err := b.request(ctx, worker, subject, encode(&busv1.SnapshotRequest{Rank: uint32(rank)}))

	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return nil, feed.ErrNoSnapshot
	case errors.Is(err, context.DeadlineExceeded):
		return nil, cmp.Or(context.Cause(ctx), err)
	case err != nil:
		return nil, err
	}

	reply := &busv1.SnapshotReply{}
	if err := decode(reply, m.Data); err != nil {
		return nil, err
	}

	if hasUnknown(reply) {
		b.reader.skipped(kindSnapshot, subject)
	}
	if reply.Snapshot == nil {
		return nil, feed.ErrNoSnapshot
	}
	return reply, nil
}

// pullPages fills the dump from the byte from on. Several pages are on their way at a time; the agent
// sends them in the order of the requests.
func (b *Bus) pullPages(ctx context.Context, subject string, s *feed.Snapshot, from int) error {
	answer := b.newAnswer(s.Worker)
	in := make(chan *nats.Msg, pagesAhead)
	sub, err := b.control.nc.ChanSubscribe(answer, in)
	if err != nil {
		return err
	}

	defer func() { _ = sub.Unsubscribe() }()

	// pulled ≤ requested: the pages between them are on their way.
	requested := from
	for pulled := from; pulled < len(s.Dump); {
		for requested < len(s.Dump) && requested < pulled+pagesAhead*pageBytes {
			request := busv1.SnapshotRequest{Rank: uint32(s.Rank), Id: s.ID, Offset: uint64(requested)}
			if err := b.control.nc.PublishRequest(subject, answer, encode(&request)); err != nil {
				return err
			}
			requested += pageBytes
		}

		n, err := receivePage(ctx, in, s.Dump[pulled:])
		if err != nil {
			return err
		}
		pulled += n
	}

	return nil
}

// receivePage copies the next page to the beginning of rest, which is the missing part of the dump.
func receivePage(ctx context.Context, in <-chan *nats.Msg, rest []byte) (int, error) {
	data, err := receive(ctx, in)
	if err != nil {
		return 0, err
	}

	var reply busv1.SnapshotReply
	if err := decode(&reply, data); err != nil {
		return 0, err
	}

	// Every page is full but the last one. Any other length is another snapshot, or a mistake.
	want := min(pageBytes, len(rest))
	switch len(reply.Page) {
	case 0: // the agent has no such snapshot, or there is no agent any more
		return 0, ErrSnapshotGone
	case want:
		return copy(rest, reply.Page), nil
	}
	return 0, fmt.Errorf("a page of %d bytes: it must have %d", len(reply.Page), want)
}

// readSnapshot returns the snapshot that a reply describes, with the first page as its dump, and the
// size of the whole dump.
func readSnapshot(m *busv1.SnapshotReply) (s *feed.Snapshot, size int, err error) {
	d := m.Snapshot
	switch {
	case d.Id == 0:
		return nil, 0, errors.New("a snapshot without an id")
	case d.Size > maxDump:
		return nil, 0, fmt.Errorf("a dump of %d bytes: it must have at most %d", d.Size, maxDump)
	case len(m.Page) != min(int(d.Size), pageBytes):
		return nil, 0, fmt.Errorf("a first page of %d bytes of a dump of %d", len(m.Page), d.Size)
	case d.BlockSize > maxBlockSize:
		return nil, 0, fmt.Errorf("block size is %d: it must be at most %d", d.BlockSize, maxBlockSize)
	case math.IsNaN(d.Seconds) || math.IsInf(d.Seconds, 0):
		return nil, 0, fmt.Errorf("the engine's clock is %g", d.Seconds)
	}

	return &feed.Snapshot{
		ID: d.Id, Epoch: d.Epoch, Next: d.Next, Seconds: d.Seconds, Complete: d.Complete,
		BlockSize: int(d.BlockSize), Dump: m.Page,
	}, int(d.Size), nil
}
