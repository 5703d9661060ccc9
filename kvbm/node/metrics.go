package node

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/metric"
)

// collector reads the figures of a node's store when the metrics page is read.
type collector struct {
	node *Node

	sessions, quarantined, slots, ready          *prometheus.Desc
	blocks, copied, dropped, failed, loaded      *prometheus.Desc
	waiting, healthy, committed, found, fetched  *prometheus.Desc
	refused, refusedSessions, wrong, storeErrors *prometheus.Desc
	pinned, unpinned                             *prometheus.Desc
	peers, peerMissing, peerSent, peerRefused    *prometheus.Desc
	transfers, fences, leased                    *prometheus.Desc
	objectRefused, packBytes                     *prometheus.Desc
}

// part is the prefix of all names.
const part = "kvstore"

func newCollector(n *Node) *collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return metric.Desc(part, name, help, append([]string{"model"}, labels...)...)
	}
	return &collector{
		node:            n,
		sessions:        desc("sessions", "Engines that are connected."),
		refusedSessions: desc("sessions_refused_total", "Sessions that broke a rule, or were not accepted."),
		quarantined:     desc("quarantined_slots", "Slots of host memory that wait for the end of an engine that may still write to them."),
		slots:           desc("host_slots", "Slots of host memory by state.", "state"),
		ready:           desc("host_ready_bytes", "Host memory that can be used without a page fault."),
		blocks:          desc("blocks", "Blocks by tier.", "tier"),
		committed:       desc("committed_blocks_total", "Blocks that engines have written."),
		found:           desc("found_blocks_total", "Blocks that were found for prompts, on any tier."),
		fetched:         desc("fetched_blocks_total", "Blocks that engines have read."),
		refused:         desc("refused_blocks_total", "Blocks for which host memory had no room."),
		pinned:          desc("pinned_blocks_total", "Blocks that engines have pinned for a prompt's cache_control."),
		unpinned:        desc("unpinned_blocks_total", "Blocks of such prompts that were not pinned: without room, or nowhere."),
		copied:          desc("copied_blocks_total", "Blocks copied to a tier.", "tier"),
		dropped:         desc("dropped_blocks_total", "Blocks that a tier's queue had no room for.", "tier"),
		failed:          desc("failed_blocks_total", "Blocks whose copy to a tier failed.", "tier"),
		loaded:          desc("loaded_blocks_total", "Blocks loaded from a tier into host memory.", "tier"),
		waiting:         desc("waiting_blocks", "Blocks that wait to be copied to a tier.", "tier"),
		healthy:         desc("tier_healthy", "1 while a tier works, else 0.", "tier"),
		wrong:           desc("damaged_blocks_total", "Blocks of a tier that were damaged, and were dropped.", "tier"),
		storeErrors:     desc("tier_errors_total", "Reads and writes of a tier that failed.", "tier"),
		peers: desc("peers", "Other nodes whose host memory is a tier: those that answer, those that do not, and those above the bound.",
			"state"),
		peerMissing: desc("peer_missing_blocks_total", "Blocks that another node was expected to have and did not send."),
		peerSent:    desc("peer_sent_blocks_total", "Blocks that were sent to other nodes."),
		peerRefused: desc("peer_connections_refused_total", "Connections of other nodes that were refused."),
		transfers: desc("peer_transfers_total",
			"Fetches of blocks from other nodes with peerTransport nixl. One that fell back to TCP counts for both.",
			"transport", "result"),
		fences: desc("peer_fences_total", "Ends of stator-transfer that kept late bytes of a failed transfer out of the store."),
		leased: desc("peer_leased_blocks", "Blocks that are held for other nodes that read them by NIXL."),
		objectRefused: desc("refused_indexes_total",
			"Objects in the bucket that were refused: damaged, of another format, or written without the secret of this node."),
		packBytes: desc("pack_bytes", "Memory, besides the host tier's, for blocks on their way to the bucket."),
	}
}

// Describe sends the descriptions.
func (c *collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		c.sessions, c.quarantined, c.slots, c.ready, c.blocks, c.copied, c.dropped, c.failed, c.loaded, c.waiting, c.healthy, c.committed,
		c.found, c.fetched, c.refused, c.refusedSessions, c.wrong, c.storeErrors,
		c.peers, c.peerMissing, c.peerSent, c.peerRefused, c.transfers, c.fences, c.leased,
		c.objectRefused, c.packBytes, c.pinned, c.unpinned,
	} {
		out <- d
	}
}

// Collect reads the figures. Before the first engine there are only the figures of sessions.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	n := c.node
	send := func(d *prometheus.Desc, kind prometheus.ValueType, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, kind, v, append([]string{n.cfg.Model}, labels...)...)
	}
	sessions := n.server.Stats()
	send(c.sessions, prometheus.GaugeValue, float64(sessions.Sessions))
	send(c.quarantined, prometheus.GaugeValue, float64(sessions.Quarantined))
	send(c.refusedSessions, prometheus.CounterValue, float64(sessions.Refused))

	n.mu.Lock()
	defer n.mu.Unlock()
	if n.store == nil {
		return
	}
	s := n.store.Stats()
	for state, v := range map[string]int{
		"reset": s.Slots.Reset, "partial": s.Slots.Partial, "complete": s.Slots.Complete, "active": s.Slots.Active,
		"inactive": s.Slots.Inactive, "leaving": s.Slots.Leaving, "quarantined": s.Slots.Quarantined,
	} {
		send(c.slots, prometheus.GaugeValue, float64(v), state)
	}
	send(c.ready, prometheus.GaugeValue, float64(n.arena.ReadyBytes()))
	send(c.blocks, prometheus.GaugeValue, float64(s.Slots.Active+s.Slots.Inactive), fleet.Host.String())
	send(c.committed, prometheus.CounterValue, float64(s.Committed))
	send(c.found, prometheus.CounterValue, float64(s.Found))
	send(c.fetched, prometheus.CounterValue, float64(s.Fetched))
	send(c.refused, prometheus.CounterValue, float64(s.Refused))
	send(c.pinned, prometheus.CounterValue, float64(s.Pinned))
	send(c.unpinned, prometheus.CounterValue, float64(s.Unpinned))

	tier := func(name string, blocks int, health Health, damaged, errors uint64) {
		counts := s.Tier(name)
		send(c.blocks, prometheus.GaugeValue, float64(blocks), name)
		send(c.copied, prometheus.CounterValue, float64(counts.Copied), name)
		send(c.dropped, prometheus.CounterValue, float64(counts.Dropped), name)
		send(c.failed, prometheus.CounterValue, float64(counts.Failed), name)
		send(c.loaded, prometheus.CounterValue, float64(counts.Loaded), name)
		send(c.waiting, prometheus.GaugeValue, float64(counts.Waiting), name)
		works := 0.0
		if health == Healthy || health == Degraded {
			works = 1
		}
		send(c.healthy, prometheus.GaugeValue, works, name)
		send(c.wrong, prometheus.CounterValue, float64(damaged), name)
		send(c.storeErrors, prometheus.CounterValue, float64(errors), name)
	}
	if n.peers != nil {
		p := n.peers.Stats()
		send(c.peers, prometheus.GaugeValue, float64(p.Reachable), "reachable")
		send(c.peers, prometheus.GaugeValue, float64(p.Peers-p.Reachable), "unreachable")
		send(c.peers, prometheus.GaugeValue, float64(p.Unused), "unused")
		send(c.peerMissing, prometheus.CounterValue, float64(p.Missing))
	}
	if n.streams != nil {
		st := n.streams.Stats()
		send(c.peerSent, prometheus.CounterValue, float64(st.Blocks))
		send(c.peerRefused, prometheus.CounterValue, float64(st.Refused))
	}
	if n.direct != nil {
		d := n.direct.Stats()
		send(c.transfers, prometheus.CounterValue, float64(d.NIXLOK), "nixl", "ok")
		send(c.transfers, prometheus.CounterValue, float64(d.NIXLFailed), "nixl", "failed")
		send(c.transfers, prometheus.CounterValue, float64(d.TCPOK), "tcp", "ok")
		send(c.transfers, prometheus.CounterValue, float64(d.TCPFailed), "tcp", "failed")
		send(c.fences, prometheus.CounterValue, float64(d.Fences))
		send(c.leased, prometheus.GaugeValue, float64(d.Held))
	}
	if n.object != nil {
		o := n.object.Stats()
		send(c.objectRefused, prometheus.CounterValue, float64(o.BadIndexes))
		send(c.packBytes, prometheus.GaugeValue, float64(o.PackBytes))
	}
	for _, t := range n.tiers() {
		tier(t.Tier, t.Blocks, t.Health, t.Damaged, t.Errors)
	}
}
