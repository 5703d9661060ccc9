package peers

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/stator-project/stator/internal/fleet"
)

const (
	// heartbeat is the longest time between two updates. It shows that the replica is alive.
	heartbeat = time.Second
	// fullEvery is the time between two full updates.
	fullEvery = 2 * time.Second
)

// Publisher makes the updates of one replica. It belongs to one goroutine.
type Publisher struct {
	replica string
	fleet   *fleet.Fleet
	outbox  *Outbox

	seq uint64
	// published are the amounts of all updates so far, without the zero ones.
	published map[fleet.RankID]RankAmount
	digest    uint64    // of published
	last      time.Time // the last update
	lastFull  time.Time // the last full update
}

// NewPublisher returns a publisher for a replica, whose prompts are in the outbox. No other replica may have had its name.
func NewPublisher(replica string, f *fleet.Fleet, o *Outbox) *Publisher {
	return &Publisher{replica: replica, fleet: f, outbox: o, published: map[fleet.RankID]RankAmount{}}
}

// Next returns the update that is due now; false if none is. Call it every few milliseconds: it compares
// every rank, at some nanoseconds each, so that bookings need no hook.
func (p *Publisher) Next(now time.Time) (u Update, due bool) {
	var changed []RankAmount
	for _, rank := range p.fleet.Snapshot().Ranks {
		current := RankAmount{rank.Worker.Name, rank.Worker.Epoch, rank.Number, rank.Load.Own()}
		before, ok := p.published[rank.ID]
		if ok && before == current || !ok && current.isZero() {
			continue
		}
		p.setAmount(rank.ID, current)
		changed = append(changed, current)
	}

	full := now.Sub(p.lastFull) >= fullEvery && len(p.published) <= maxRanks
	prompts := p.outbox.take(now)
	if !full && len(changed) == 0 && len(prompts) == 0 && now.Sub(p.last) < heartbeat {
		return Update{}, false
	}
	if full {
		p.lastFull = now
		changed = p.fullUpdate()
	}

	p.seq++
	p.last = now
	return Update{Replica: p.replica, Seq: p.seq, Ranks: changed, Full: full, Digest: p.digest, Prompts: prompts}, true
}

// setAmount records the published amount of a rank.
func (p *Publisher) setAmount(id fleet.RankID, current RankAmount) {
	before := p.published[id]
	p.digest += current.digest() - before.digest()

	if current.isZero() {
		delete(p.published, id)
	} else {
		p.published[id] = current
	}
}

// fullUpdate returns the amounts that are not zero, sorted by worker and rank. It drops the ranks that have left
// the fleet.
func (p *Publisher) fullUpdate() []RankAmount {
	snap := p.fleet.Snapshot()
	list := make([]RankAmount, 0, len(p.published))
	for id, a := range p.published {
		if rank, ok := snap.Rank(a.Worker, a.Rank); !ok || rank.ID != id {
			p.setAmount(id, RankAmount{})
			continue
		}
		list = append(list, a)
	}

	slices.SortFunc(list, func(a, b RankAmount) int { return cmp.Or(strings.Compare(a.Worker, b.Worker), a.Rank-b.Rank) })
	return list
}
