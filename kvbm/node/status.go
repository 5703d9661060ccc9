package node

import (
	"fmt"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/block"
	"github.com/stator-project/stator/kvbm"
	"github.com/stator-project/stator/kvbm/direct"
	"github.com/stator-project/stator/kvbm/peers"
	"github.com/stator-project/stator/kvbm/session"
)

// The states of a node's store.
const (
	// Waiting is the state before the first engine connects.
	Waiting = "waiting"
	// Failed is the state after memory could not be reserved, or other nodes could not be served. The next engine that connects tries
	// again.
	Failed = "failing"
	// Serving is the state while engines can use the store.
	Serving = "serving"
)

// Status is the state of a node's store. Before Serving, only Model, State, Reason and the fields about sessions are set.
type Status struct {
	Model string
	// State is one of the above, and Reason why it is Failed.
	State, Reason string

	Layout block.Layout
	// Store has the slots of host memory and the counts of blocks.
	Store kvbm.Stats
	// HostBytes is the size of host memory, and ReadyBytes how much of it can be used without a page fault.
	HostBytes, ReadyBytes int64
	HugePages             bool
	Tiers                 []TierStatus
	// PeerAddress is the address at which other nodes fetch blocks; empty if they do not. Peers are the nodes from which this node
	// fetches, and UnusedPeers counts the peers beyond the ones that it uses.
	PeerAddress string
	Peers       []peers.Status
	UnusedPeers int
	// NIXL is the state of copies from other nodes by NIXL; nil without them.
	NIXL *direct.Stats

	Engines []session.Engine
	// Quarantined counts the slots that wait for the end of a process, and Refused counts sessions that were refused or broke a rule.
	Quarantined int
	Refused     uint64
}

// Health is the state of a tier.
type Health string

// The healths of tiers.
const (
	// Starting is the health before the first answer of the bucket.
	Starting Health = "starting"
	// Healthy tiers read and write.
	Healthy Health = "healthy"
	// Degraded tiers read and write, and had an error within the last minute.
	Degraded Health = "degraded"
	// Failing tiers do not read or do not write.
	Failing Health = "failing"
)

// TierStatus is the state of a tier behind host memory.
type TierStatus struct {
	// Tier is its name: peer (the memory of other nodes), disk or external (the bucket).
	Tier string `json:"tier"`
	// Reason describes why the tier is not Healthy. A healthy one may have the error of its last read or write that failed.
	Health Health `json:"health"`
	Reason string `json:"reason"`
	// Blocks counts the blocks that are there, Room the blocks that the tier has room for (0 for a bucket and other nodes), and Pinned
	// the blocks of Blocks that have a pin.
	Blocks int `json:"blocks"`
	Room   int `json:"room"`
	Pinned int `json:"pinned"`
	// The store's counts of the tier.
	kvbm.TierStats
	// Damaged counts blocks whose bytes were wrong and were dropped, and Errors reads and writes that failed, including the log's.
	Damaged uint64 `json:"damaged_blocks"`
	Errors  uint64 `json:"errors"`
}

// Status returns the current state.
func (n *Node) Status() Status {
	sessions := n.server.Stats()
	s := Status{
		Model: n.cfg.Model, State: Waiting, Engines: n.server.Engines(), Quarantined: sessions.Quarantined, Refused: sessions.Refused,
	}

	n.mu.Lock()
	defer n.mu.Unlock()
	if n.failed != nil {
		s.State = Failed
		s.Reason = n.failed.Error()
	}
	if n.store == nil {
		return s
	}
	s.State = Serving
	s.Layout = n.store.Layout()
	s.Store = n.store.Stats()
	s.HostBytes = n.arena.Bytes()
	s.ReadyBytes = n.arena.ReadyBytes()
	s.HugePages = n.arena.HugePages()
	s.Tiers = n.tiers()
	s.PeerAddress = n.address
	if n.peers != nil {
		s.Peers = n.peers.Status()
		s.UnusedPeers = n.peers.Stats().Unused
	}
	if n.direct != nil {
		d := n.direct.Stats()
		s.NIXL = &d
	}
	return s
}

// tiers returns the states of the tiers behind host memory.
//
// Requires: mu.
func (n *Node) tiers() (all []TierStatus) {
	if n.peers != nil {
		p := n.peers.Stats()
		t := TierStatus{Tier: peerTier, Health: Healthy, Blocks: p.Blocks, Damaged: p.Damaged, Errors: p.Failed}
		if p.Reachable < p.Peers {
			t.Health = Failing
			t.Reason = fmt.Sprintf("%d of %d nodes do not answer", p.Peers-p.Reachable, p.Peers)
		}
		all = append(all, t)
	}

	if n.disk != nil {
		health, reason, d := n.disk.health()
		t := TierStatus{
			Tier: fleet.Disk.String(), Health: health, Reason: reason, Blocks: d.Slots.Active + d.Slots.Inactive, Pinned: d.Slots.Pinned,
			Damaged: d.Torn + d.Stale, Errors: d.ReadErrors + d.WriteErrors + d.LogErrors,
		}
		t.Room = t.Blocks + d.Slots.Reset + d.Slots.Partial + d.Slots.Complete + d.Slots.Leaving + d.Slots.Quarantined
		all = append(all, t)
	}
	if n.object != nil {
		o := n.object.Stats()
		all = append(all, TierStatus{
			Tier: fleet.External.String(), Health: Health(o.State), Reason: o.Reason, Blocks: o.Blocks,
			Damaged: uint64(o.Damaged), Errors: uint64(o.Failed),
		})
	}
	if n.store == nil { // watch goes on until the tiers are closed
		return all
	}
	stats := n.store.Stats()
	for i := range all {
		all[i].TierStats = stats.Tier(all[i].Tier)
	}
	return all
}
