package peers

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/route/predict"
)

// Silence is the time for which a replica may publish nothing before its bookings are dropped. It
// leaves room for the loss of two heartbeats.
const Silence = 3500 * time.Millisecond

const (
	// maxReplicas bounds the replicas that a receiver stores, because any client of the bus can
	// publish updates.
	maxReplicas = 256
	// maxRanks bounds the ranks of one replica, for the same reason. It also keeps an update below
	// the bus's 1 MiB: a replica with bookings on more ranks publishes no full updates.
	maxRanks = 1 << 13
)

// Receiver applies the updates of other replicas to the loads of a fleet. All methods are safe for
// concurrent use.
type Receiver struct {
	self   string
	fleet  *fleet.Fleet
	expect predict.Made // may be nil

	mu       sync.Mutex
	replicas map[string]*replica // guarded by mu; by name
	stats    Stats               // guarded by mu
}

// replica is another replica of the router.
type replica struct {
	seq        uint64    // of its last update
	lastUpdate time.Time // when that arrived
	booked     map[key]booked
	digest     uint64 // of booked
	mismatch   bool   // digest differed from the last update's
}

// key names a rank in an epoch.
type key struct {
	worker string
	epoch  uint64
	rank   int
}

func keyOf(a *RankAmount) key { return key{a.Worker, a.Epoch, a.Rank} }

// booked is the amount of a replica on a rank. Invariant: amount is part of load, unless load is nil:
// then the fleet does not have the rank in that epoch.
type booked struct {
	load   *fleet.Load
	amount fleet.Amount
}

// Stats are the counters of a receiver.
type Stats struct {
	// Live are the replicas that published an update within Silence, and Booked their requests.
	Live   int
	Booked int64
	// Messages are applied updates, and Old the late or repeated ones. Lost are missing by their numbers.
	// Refused have an amount that no router books, or prompts out of bounds. Prompts are in the applied updates. DigestMismatches are
	// updates with a digest mismatch. Expired are replicas that stopped publishing.
	Messages, Old, Lost, Refused, Prompts, DigestMismatches, Expired uint64
}

// NewReceiver returns a receiver for the replica self, whose own updates it ignores. expect receives the predictions of other replicas
// about ranks of the fleet; nil for no one.
func NewReceiver(self string, f *fleet.Fleet, expect predict.Made) *Receiver {
	return &Receiver{self: self, fleet: f, expect: expect, replicas: map[string]*replica{}}
}

// Names returns the names of the other replicas, sorted.
func (r *Receiver) Names() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Sorted(maps.Keys(r.replicas))
}

// Apply applies an update. It keeps nothing of u.
func (r *Receiver) Apply(u *Update, now time.Time) {
	if u.Replica == r.self || u.Replica == "" || len(u.Ranks) > maxRanks {
		return
	}
	if !r.applyAmounts(u, now) || r.expect == nil {
		return
	}

	snap := r.fleet.Snapshot()
	for i := range u.Prompts {
		p := &u.Prompts[i]
		if rank, ok := snap.Rank(p.Worker, p.Rank); ok && rank.Worker.Epoch == p.Epoch {
			r.expect(predict.Prediction{
				Rank: rank, Chain: p.Blocks, Known: p.Known, Computed: now.Add(p.Computed), Withdrawn: p.Withdrawn,
			})
		}
	}
}

// applyAmounts replaces the amounts of a replica. False means that nothing of the update may be used.
func (r *Receiver) applyAmounts(u *Update, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()

	// A negative amount would make its worker the cheapest of the fleet, so nothing of the update is used.
	if !arePrompts(u.Prompts) || slices.ContainsFunc(u.Ranks, func(a RankAmount) bool { return !a.isValid() }) {
		r.stats.Refused++
		return false
	}

	from := r.replicaLocked(u)
	if from == nil {
		return false
	}
	if u.Seq <= from.seq {
		r.stats.Old++
		return false
	}

	r.stats.Lost += u.Seq - from.seq - 1
	r.stats.Messages++
	r.stats.Prompts += uint64(len(u.Prompts))
	from.seq = u.Seq
	from.lastUpdate = now

	if u.Full {
		from.clearAllBut(u.Ranks, now)
	}
	snap := r.fleet.Snapshot()
	for i := range u.Ranks {
		from.apply(&u.Ranks[i], snap, now)
	}

	from.mismatch = from.digest != u.Digest
	if from.mismatch {
		r.stats.DigestMismatches++
	}
	return true
}

// replicaLocked returns the replica of an update, and adds it if it is new; nil at the bound.
func (r *Receiver) replicaLocked(u *Update) *replica {
	from := r.replicas[u.Replica]
	if from == nil && len(r.replicas) < maxReplicas {
		from = &replica{seq: u.Seq - 1, booked: map[key]booked{}}
		r.replicas[u.Replica] = from
	}
	return from
}

// clearAllBut makes the amounts of all other ranks zero.
func (p *replica) clearAllBut(ranks []RankAmount, now time.Time) {
	kept := make(map[key]bool, len(ranks))
	for i := range ranks {
		kept[keyOf(&ranks[i])] = true
	}

	for k, b := range p.booked {
		if !kept[k] {
			p.setAmount(k, b.load, fleet.Amount{}, now)
		}
	}
}

// apply replaces the amount of one rank.
func (p *replica) apply(a *RankAmount, snap *fleet.Snapshot, now time.Time) {
	var load *fleet.Load
	if rank, ok := snap.Rank(a.Worker, a.Rank); ok && rank.Worker.Epoch == a.Epoch {
		load = rank.Load
	}

	k := keyOf(a)
	if b, ok := p.booked[k]; ok && b.load != load { // the rank has left the fleet, or joined it, since
		p.setAmount(k, b.load, fleet.Amount{}, now)
	}
	p.setAmount(k, load, a.Amount, now)
}

// setAmount replaces the amount of a rank, in its load too.
func (p *replica) setAmount(k key, load *fleet.Load, amount fleet.Amount, now time.Time) {
	before, ok := p.booked[k]
	if !ok && len(p.booked) >= maxRanks {
		return
	}

	if load != nil {
		load.SetPeer(before.amount, amount, now)
	}
	p.digest -= (&RankAmount{k.worker, k.epoch, k.rank, before.amount}).digest()
	p.digest += (&RankAmount{k.worker, k.epoch, k.rank, amount}).digest()

	if amount == (fleet.Amount{}) {
		delete(p.booked, k)
		return
	}
	p.booked[k] = booked{load, amount}
}

// Expire drops the replicas that have published nothing for Silence, and returns how many there were.
func (r *Receiver) Expire(now time.Time) (expired int) {
	r.mu.Lock()
	defer r.mu.Unlock()

	for name, p := range r.replicas {
		if now.Sub(p.lastUpdate) < Silence {
			continue
		}
		for k, b := range p.booked {
			p.setAmount(k, b.load, fleet.Amount{}, now)
		}
		delete(r.replicas, name)
		expired++
	}
	r.stats.Expired += uint64(expired)
	return expired
}

// Stats returns the counters now.
func (r *Receiver) Stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()

	s := r.stats
	s.Live = len(r.replicas)
	for _, p := range r.replicas {
		for _, b := range p.booked {
			s.Booked += b.amount.Requests
		}
	}
	return s
}

// Live returns the number of other replicas that published an update within Silence.
func (r *Receiver) Live() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.replicas)
}

// String prints one line per replica.
func (r *Receiver) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()

	var lines []string
	for name, p := range r.replicas {
		var sum fleet.Amount
		for _, b := range p.booked {
			sum.Requests += b.amount.Requests
			sum.PrefillTokens += b.amount.PrefillTokens
			sum.DecodeBlocks += b.amount.DecodeBlocks
		}
		state := "agrees"
		if p.mismatch {
			state = "differs"
		}
		lines = append(lines, fmt.Sprintf("%s: message %d, %s, %d ranks, %d requests, %d prefill tokens, %d decode blocks\n",
			name, p.seq, state, len(p.booked), sum.Requests, sum.PrefillTokens, sum.DecodeBlocks))
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}
