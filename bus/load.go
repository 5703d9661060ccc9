package bus

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/stator-project/stator/bus/busv1"
	"github.com/stator-project/stator/internal/fleet"
)

// Load is an engine's report about one of its ranks, relayed by its agent.
type Load struct {
	Worker string
	Rank   int
	// Epoch identifies the engine process.
	Epoch uint64
	// Running and Waiting count requests.
	Running, Waiting int
	// KVUsage is the share of the KV cache in use, 0 to 1.
	KVUsage float64
	// PrefixQueries and PrefixHits count prompt tokens since the engine started: the tokens that it
	// looked up in its cache, and the tokens that it found. Both are 0 when the engine does not
	// report them.
	PrefixQueries, PrefixHits uint64
	// Gaps counts the gaps between tokens of answers since the engine started, and GapTime is their
	// sum. Both are 0 when the engine does not report them.
	Gaps    uint64
	GapTime time.Duration
	// StepTokens is the mean number of an answer's tokens that a decode step makes; 0 when the engine does not report it.
	StepTokens float64
	// Store is the store of KV blocks that the engine uses, as its agent has measured it. It is empty for engines without one,
	// and for engines that an agent only watches.
	Store fleet.Store
	// Asleep means that the engine sleeps: it serves no request, and its cache is empty.
	Asleep bool
}

// loadSubject returns the subject of a worker's load. ">" stands for any worker.
func (b *Bus) loadSubject(worker string) string { return b.subject("load", worker) }

// PublishLoad publishes a sample to every subscriber. A sample that is lost is not repeated, because
// the next one replaces it. The error is not nil when the bus was closed or its buffer for messages that
// wait for a reconnection is full.
func (b *Bus) PublishLoad(l Load) error {
	return b.control.nc.Publish(b.loadSubject(l.Worker), encode(loadMessage(&l)))
}

// SubscribeLoad calls apply for every sample of every worker until ctx ends, one at a time. Samples that come
// faster than apply returns are dropped, and so are samples that name another worker than their subject does:
// NATS permissions confine an agent to the subjects of its node.
func (b *Bus) SubscribeLoad(ctx context.Context, apply func(Load)) error {
	return b.control.subscribe(ctx, b.loadSubject(">"), func(m *nats.Msg) {
		var received busv1.Load
		l, err := decodeLoad(&received, m.Data)
		if err == nil && m.Subject != b.loadSubject(l.Worker) {
			err = fmt.Errorf("the load is of worker %q", l.Worker)
		}
		if b.reader.accept(kindLoad, m.Subject, &received, err) {
			apply(l)
		}
	})
}

// loadMessage returns the message of a sample.
func loadMessage(l *Load) *busv1.Load {
	m := &busv1.Load{
		Worker: l.Worker, Rank: uint32(l.Rank), Epoch: l.Epoch,
		Running: uint32(l.Running), Waiting: uint32(l.Waiting), KvUsage: l.KVUsage,
		PrefixQueries: l.PrefixQueries, PrefixHits: l.PrefixHits,
		Gaps: l.Gaps, GapNanoseconds: int64(l.GapTime), StepTokens: l.StepTokens,
		UsesStore: l.Store.Used, ServesStore: l.Store.Served, Asleep: l.Asleep,
	}
	// Tiers of which nothing is known are left out, so that most messages stay small.
	for t, x := range l.Store.Tiers {
		if x.Known() {
			m.Tiers = append(m.Tiers, tierLoadMessage(fleet.Tier(t), x))
		}
	}
	if l.Store.Peers.Known() {
		m.Peers = tierLoadMessage(0, l.Store.Peers)
	}
	return m
}

// tierLoadMessage returns the message of a tier's times. The times of other nodes have no tier.
func tierLoadMessage(t fleet.Tier, x fleet.TierLoad) *busv1.TierLoad {
	return &busv1.TierLoad{Tier: uint32(t), WaitNanoseconds: int64(x.Wait), TokenNanoseconds: int64(x.Token)}
}

// decodeStore returns the store of a load. A tier that it does not name is unknown, and so are the other nodes, from which the node then
// loads nothing. Its error names the tier that is out of range.
func decodeStore(m *busv1.Load) (s fleet.Store, err error) {
	s.Used, s.Served = m.UsesStore, m.ServesStore
	for _, t := range m.Tiers {
		if t.Tier == uint32(fleet.Device) || t.Tier >= fleet.Tiers {
			return s, fmt.Errorf("loads of tier %d: tiers are 1 to %d", t.Tier, fleet.Tiers-1)
		}
		s.Tiers[t.Tier], err = decodeTierLoad(t)
		if err != nil {
			return s, fmt.Errorf("tier %d %w", t.Tier, err)
		}
	}

	// A node that loads nothing from others has no such times.
	if m.Peers == nil {
		return s, nil
	}
	s.Peers, err = decodeTierLoad(m.Peers)
	if err != nil {
		return s, fmt.Errorf("the memory of other nodes %w", err)
	}
	return s, nil
}

// decodeTierLoad returns the times of a message. Its error is the rest of a sentence about the tier.
func decodeTierLoad(m *busv1.TierLoad) (x fleet.TierLoad, err error) {
	x = fleet.TierLoad{Wait: time.Duration(m.WaitNanoseconds), Token: time.Duration(m.TokenNanoseconds)}
	// A router multiplies these times by tokens, so one out of range would distort every decision.
	within := func(d time.Duration) bool { return d >= 0 && d <= fleet.MaxTierLoad }
	if !within(x.Wait) || !within(x.Token) {
		return x, fmt.Errorf("loads in %v and %v a token: times are 0 to %v", x.Wait, x.Token, fleet.MaxTierLoad)
	}
	return x, nil
}

// maxRequests bounds the requests of one rank that are running or waiting, so that sums over a fleet fit
// into an int of 32 bits.
const maxRequests = 1 << 30

// decodeLoad returns the load in data, by way of the empty message m.
func decodeLoad(m *busv1.Load, data []byte) (Load, error) {
	if err := decode(m, data); err != nil {
		return Load{}, err
	}

	// The router adds these figures up, so one value out of range would distort every decision.
	switch {
	case m.Rank >= fleet.MaxRanks:
		return Load{}, fmt.Errorf("rank is %d: it must be less than %d", m.Rank, fleet.MaxRanks)
	case m.Running > maxRequests || m.Waiting > maxRequests:
		return Load{}, fmt.Errorf("%d running and %d waiting requests: there must be at most %d", m.Running, m.Waiting, maxRequests)
	case !(m.KvUsage >= 0 && m.KvUsage <= 1):
		return Load{}, fmt.Errorf("KV usage is %g: it must lie between 0 and 1", m.KvUsage)
	}

	if !(m.StepTokens >= 0 && m.StepTokens <= fleet.MaxStepTokens) {
		return Load{}, fmt.Errorf("%g tokens of an answer in a step: there must be at most %d", m.StepTokens, fleet.MaxStepTokens)
	}
	store, err := decodeStore(m)
	if err != nil {
		return Load{}, err
	}
	return Load{
		Worker: m.Worker, Rank: int(m.Rank), Epoch: m.Epoch,
		Running: int(m.Running), Waiting: int(m.Waiting), KVUsage: m.KvUsage,
		PrefixQueries: m.PrefixQueries, PrefixHits: m.PrefixHits,
		Gaps: m.Gaps, GapTime: time.Duration(m.GapNanoseconds), StepTokens: m.StepTokens, Store: store,
		Asleep: m.Asleep,
	}, nil
}
