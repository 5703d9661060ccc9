package peers

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/stator-project/stator/internal/fleet"
)

// RankAmount is what one replica has booked on one rank, in all: not a change, so that a message
// that is lost is made good by the next that speaks of the rank.
type RankAmount struct {
	Worker string
	Epoch  uint64
	Rank   int
	Amount fleet.Amount
}

// Update is what a replica of the router says to the others of what it has booked.
type Update struct {
	// Replica is new at each start of a process. Seq grows by one with each message.
	Replica string
	Seq     uint64
	// Ranks are those whose amounts have changed since the message before, or, where Whole is
	// true, all that are not zero: then every other is zero.
	Ranks []RankAmount
	Whole bool
	// Digest is of all amounts that are not zero: a reader that has another has missed something.
	Digest uint64
}

// digest is a part of [Update.Digest], which is the sum over all ranks: so it changes with each
// amount, in whatever order they come, and nobody reckons it anew.
func (a *RankAmount) digest() uint64 {
	if a.Amount == (fleet.Amount{}) {
		return 0
	}
	var b [48]byte
	for i, v := range [...]uint64{a.Epoch, uint64(a.Rank), uint64(a.Amount.Requests), uint64(a.Amount.PrefillTokens), uint64(a.Amount.DecodeBlocks), uint64(a.Amount.PrefillTime)} {
		binary.LittleEndian.PutUint64(b[8*i:], v)
	}
	return xxh3.HashSeed(b[:], xxh3.HashString(a.Worker))
}

// Publisher makes the messages of one replica. It belongs to one goroutine.
type Publisher struct {
	replica string
	fleet   *fleet.Fleet
	seq     uint64
	said    map[fleet.RankID]RankAmount // the amounts that others know, those that are not zero
	digest  uint64                      // of said
	spoke   time.Time                   // the last message
	told    time.Time                   // the last whole one
}

// What a replica says without being moved to: that it lives, and everything.
const (
	Heartbeat  = time.Second
	WholeEvery = 2 * time.Second
)

// NewPublisher returns the voice of a replica, whose name must be new.
func NewPublisher(replica string, f *fleet.Fleet) *Publisher {
	return &Publisher{replica: replica, fleet: f, said: map[fleet.RankID]RankAmount{}}
}

// Next is what to say now, if anything: call it every few milliseconds. It looks at every rank,
// which takes some nanoseconds each, and needs no hook in the bookings.
func (s *Publisher) Next(now time.Time) (m Update, ok bool) {
	var changed []RankAmount
	for _, rank := range s.fleet.Snapshot().Ranks {
		is := RankAmount{rank.Worker.Name, rank.Worker.Epoch, rank.Number, rank.Load.Own()}
		if was, known := s.said[rank.ID]; known && was == is || !known && is.Amount == (fleet.Amount{}) {
			continue
		}
		s.say(rank.ID, is)
		changed = append(changed, is)
	}
	if now.Sub(s.told) >= WholeEvery && len(s.said) <= maxPeerRanks {
		s.told = now
		m.Whole, changed = true, s.all()
	} else if len(changed) == 0 && now.Sub(s.spoke) < Heartbeat {
		return m, false
	}
	s.seq++
	s.spoke = now
	m.Replica, m.Seq, m.Ranks, m.Digest = s.replica, s.seq, changed, s.digest
	return m, true
}

// say makes is what others know of a rank.
func (s *Publisher) say(id fleet.RankID, is RankAmount) {
	was := s.said[id]
	s.digest += is.digest() - was.digest()
	if is.Amount == (fleet.Amount{}) {
		delete(s.said, id)
	} else {
		s.said[id] = is
	}
}

// all are the amounts that are not zero, of ranks that are still there.
func (s *Publisher) all() []RankAmount {
	snap := s.fleet.Snapshot()
	list := make([]RankAmount, 0, len(s.said))
	for id, a := range s.said {
		if rank, ok := snap.Rank(a.Worker, a.Rank); !ok || rank.ID != id {
			s.say(id, RankAmount{})
			continue
		}
		list = append(list, a)
	}
	slices.SortFunc(list, func(a, b RankAmount) int { return cmp.Or(strings.Compare(a.Worker, b.Worker), a.Rank-b.Rank) })
	return list
}

// Peers applies what other replicas say to the loads of the fleet. Messages may be lost, doubled
// or late: amounts are absolute, an old message is ignored, and everything is said again every
// two seconds. A replica that has fallen silent is forgotten with all it had booked.
//
// All methods are safe for concurrent use.
type Receiver struct {
	self  string
	fleet *fleet.Fleet

	mu    sync.Mutex
	peers map[string]*peer // guarded by mu
	stats Stats            // guarded by mu
}

type peer struct {
	seq     uint64
	heard   time.Time
	booked  map[key]booked
	digest  uint64 // of booked
	differs bool   // from its digest, so that a whole message is awaited
}

type key struct {
	worker string
	epoch  uint64
	rank   int
}

// booked is what a peer has on a rank; load is nil where the fleet does not have the rank (yet).
type booked struct {
	load   *fleet.Load
	amount fleet.Amount
}

// Stats counts what was heard of other replicas.
type Stats struct {
	// Live are those heard of within Silence; Booked is their requests.
	Live   int
	Booked int64
	// Messages were applied, Old were not; Lost were never heard, by their numbers; Differed are
	// those after which a digest did not fit; Expired are replicas that fell silent.
	Messages, Old, Lost, Differed, Expired uint64
}

// Silence is how long a replica may say nothing before its bookings are forgotten. maxPeers and
// maxPeerRanks bound what strangers can make us keep; the latter keeps a message below the bus's
// 1 MiB too, and a replica with bookings on more ranks says only what changes.
const (
	Silence      = 3500 * time.Millisecond
	maxPeers     = 256
	maxPeerRanks = 1 << 13
)

// NewReceiver returns the ear of the replica self, which ignores itself.
func NewReceiver(self string, f *fleet.Fleet) *Receiver {
	return &Receiver{self: self, fleet: f, peers: map[string]*peer{}}
}

// Apply takes a message in.
func (p *Receiver) Apply(m *Update, now time.Time) {
	if m.Replica == p.self || m.Replica == "" || len(m.Ranks) > maxPeerRanks {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	q := p.peers[m.Replica]
	if q == nil {
		if len(p.peers) >= maxPeers {
			return
		}
		q = &peer{seq: m.Seq - 1, booked: map[key]booked{}}
		p.peers[m.Replica] = q
	}
	if m.Seq <= q.seq {
		p.stats.Old++
		return
	}
	p.stats.Lost += m.Seq - q.seq - 1
	p.stats.Messages++
	q.seq, q.heard = m.Seq, now
	if m.Whole {
		named := make(map[key]bool, len(m.Ranks))
		for i := range m.Ranks {
			named[keyOf(&m.Ranks[i])] = true
		}
		for k, b := range q.booked {
			if !named[k] {
				q.set(k, b.load, fleet.Amount{}, now)
			}
		}
	}
	snap := p.fleet.Snapshot()
	for i := range m.Ranks {
		a := &m.Ranks[i]
		k := keyOf(a)
		var load *fleet.Load
		if rank, ok := snap.Rank(a.Worker, a.Rank); ok && rank.Worker.Epoch == a.Epoch {
			load = rank.Load
		}
		if b, known := q.booked[k]; known && b.load != load {
			q.set(k, b.load, fleet.Amount{}, now) // the rank has a new life, or a first one
		}
		q.set(k, load, a.Amount, now)
	}
	if q.differs = q.digest != m.Digest; q.differs {
		p.stats.Differed++
	}
}

func keyOf(a *RankAmount) key { return key{a.Worker, a.Epoch, a.Rank} }

// set makes amount what the peer has booked under k.
func (q *peer) set(k key, load *fleet.Load, amount fleet.Amount, now time.Time) {
	was, known := q.booked[k]
	if !known && len(q.booked) >= maxPeerRanks {
		return
	}
	if load != nil {
		load.SetPeer(was.amount, amount, now)
	}
	q.digest -= (&RankAmount{k.worker, k.epoch, k.rank, was.amount}).digest()
	q.digest += (&RankAmount{k.worker, k.epoch, k.rank, amount}).digest()
	if amount == (fleet.Amount{}) {
		delete(q.booked, k)
		return
	}
	q.booked[k] = booked{load, amount}
}

// Expire forgets the replicas that have fallen silent, and returns how many there were.
func (p *Receiver) Expire(now time.Time) (expired int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, q := range p.peers {
		if now.Sub(q.heard) < Silence {
			continue
		}
		for k, b := range q.booked {
			q.set(k, b.load, fleet.Amount{}, now)
		}
		delete(p.peers, name)
		expired++
	}
	p.stats.Expired += uint64(expired)
	return expired
}

// Stats returns the counters now.
func (p *Receiver) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.stats
	s.Live = len(p.peers)
	for _, q := range p.peers {
		for _, b := range q.booked {
			s.Booked += b.amount.Requests
		}
	}
	return s
}

// String prints who is heard of and what they have booked.
func (p *Receiver) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var lines []string
	for name, q := range p.peers {
		var sum fleet.Amount
		for _, b := range q.booked {
			sum.Requests += b.amount.Requests
			sum.PrefillTokens += b.amount.PrefillTokens
			sum.DecodeBlocks += b.amount.DecodeBlocks
		}
		state := "agrees"
		if q.differs {
			state = "differs"
		}
		lines = append(lines, fmt.Sprintf("%s: message %d, %s, %d ranks, %d requests, %d prefill tokens, %d decode blocks\n",
			name, q.seq, state, len(q.booked), sum.Requests, sum.PrefillTokens, sum.DecodeBlocks))
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}
