package bus

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/stator-project/stator/bus/busv1"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/route/peers"
)

// bookingsSubject returns the subject of a replica's bookings. "*" stands for any replica.
func (b *Bus) bookingsSubject(replica string) string { return b.subject("book", replica) }

// PublishBookings publishes the bookings of this replica of the router. A message that is lost is made
// good by a later one, because amounts are totals and not changes.
func (b *Bus) PublishBookings(u *peers.Update) error {
	return b.control.nc.Publish(b.bookingsSubject(u.Replica), encode(bookingsMessage(u)))
}

// SubscribeBookings calls apply for every message of every replica, this one's included, until ctx
// ends. A message is dropped if it names another replica than its subject does. The update belongs to
// apply. Its receiver finds out whether it is late, repeated or out of range: package peers does.
func (b *Bus) SubscribeBookings(ctx context.Context, apply func(*peers.Update)) error {
	return b.control.subscribe(ctx, b.bookingsSubject("*"), func(m *nats.Msg) {
		var received busv1.Bookings
		err := decode(&received, m.Data)
		if err == nil && (!fleet.ValidName(received.Replica) || m.Subject != b.bookingsSubject(received.Replica)) {
			err = fmt.Errorf("the bookings are of replica %q", received.Replica)
		}
		if b.reader.accept(kindBookings, m.Subject, &received, err) {
			apply(readBookings(&received))
		}
	})
}

// bookingsMessage returns the message of an update.
func bookingsMessage(u *peers.Update) *busv1.Bookings {
	m := &busv1.Bookings{Replica: u.Replica, Seq: u.Seq, Full: u.Full, Digest: u.Digest}
	for i := range u.Ranks {
		a := &u.Ranks[i]
		m.Ranks = append(m.Ranks, &busv1.RankAmount{
			Worker: a.Worker, Epoch: a.Epoch, Rank: uint32(a.Rank),
			Requests: a.Amount.Requests, PrefillTokens: a.Amount.PrefillTokens,
			DecodeBlocks: a.Amount.DecodeBlocks, PrefillNanoseconds: int64(a.Amount.PrefillTime),
		})
	}
	for i := range u.Prompts {
		p := &u.Prompts[i]
		m.Prompts = append(m.Prompts, &busv1.SentPrompt{
			Worker: p.Worker, Epoch: p.Epoch, Rank: uint32(p.Rank), Known: uint32(p.Known), ComputedNanoseconds: int64(p.Computed),
			Blocks: appendNumbers(nil, p.Blocks), Withdrawn: p.Withdrawn,
		})
	}

	return m
}

// readBookings returns the update in a message. Its receiver checks the amounts and prompts.
func readBookings(m *busv1.Bookings) *peers.Update {
	u := &peers.Update{Replica: m.Replica, Seq: m.Seq, Full: m.Full, Digest: m.Digest}
	for _, a := range m.Ranks {
		u.Ranks = append(u.Ranks, peers.RankAmount{
			Worker: a.Worker, Epoch: a.Epoch, Rank: int(a.Rank),
			Amount: fleet.Amount{
				Requests: a.Requests, PrefillTokens: a.PrefillTokens,
				DecodeBlocks: a.DecodeBlocks, PrefillTime: time.Duration(a.PrefillNanoseconds),
			},
		})
	}
	for _, p := range m.Prompts {
		_, blocks := appendPart(make([]blockhash.Sequence, 0, len(p.Blocks)), p.Blocks)
		u.Prompts = append(u.Prompts, peers.Prompt{
			Worker: p.Worker, Epoch: p.Epoch, Rank: int(p.Rank), Known: int(p.Known), Computed: time.Duration(p.ComputedNanoseconds),
			Blocks: blocks, Withdrawn: p.Withdrawn,
		})
	}

	return u
}
