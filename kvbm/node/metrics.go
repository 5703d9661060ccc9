package node

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/metric"
)

// The figures of a node's store, which are read when the metrics page is.
var (
	sessionsDesc        = desc("sessions", "Engines that are connected.")
	refusedSessionsDesc = desc("sessions_refused_total", "Sessions that broke a rule, or were not accepted.")
	quarantinedDesc     = desc("quarantined_slots",
		"Slots of host memory that wait for the end of an engine that may still write to them.")
	slotsDesc       = desc("host_slots", "Slots of host memory by state.", "state")
	readyDesc       = desc("host_ready_bytes", "Host memory that can be used without a page fault.")
	blocksDesc      = desc("blocks", "Blocks by tier.", "tier")
	committedDesc   = desc("committed_blocks_total", "Blocks that engines have written.")
	foundDesc       = desc("found_blocks_total", "Blocks that were found for prompts, on any tier.")
	fetchedDesc     = desc("fetched_blocks_total", "Blocks that engines have read.")
	refusedDesc     = desc("refused_blocks_total", "Blocks for which host memory had no room.")
	pinnedDesc      = desc("pinned_blocks_total", "Blocks that engines have pinned for a prompt's cache_control.")
	unpinnedDesc    = desc("unpinned_blocks_total", "Blocks of such prompts that were not pinned: without room, or nowhere.")
	copiedDesc      = desc("copied_blocks_total", "Blocks copied to a tier.", "tier")
	droppedDesc     = desc("dropped_blocks_total", "Blocks that a tier's queue had no room for.", "tier")
	failedDesc      = desc("failed_blocks_total", "Blocks whose copy to a tier failed.", "tier")
	loadedDesc      = desc("loaded_blocks_total", "Blocks loaded from a tier into host memory.", "tier")
	waitingDesc     = desc("waiting_blocks", "Blocks that wait to be copied to a tier.", "tier")
	healthyDesc     = desc("tier_healthy", "1 while a tier works, else 0.", "tier")
	wrongDesc       = desc("damaged_blocks_total", "Blocks of a tier that were damaged, and were dropped.", "tier")
	storeErrorsDesc = desc("tier_errors_total", "Reads and writes of a tier that failed.", "tier")
	peersDesc       = desc("peers",
		"Other nodes whose host memory is a tier: those that answer, those that do not, and those above the bound.",
		"state")
	peerMissingDesc = desc("peer_missing_blocks_total", "Blocks that another node was expected to have and did not send.")
	peerSentDesc    = desc("peer_sent_blocks_total", "Blocks that were sent to other nodes.")
	peerRefusedDesc = desc("peer_connections_refused_total", "Connections of other nodes that were refused.")
	transfersDesc   = desc("peer_transfers_total",
		"Fetches of blocks from other nodes with peerTransport nixl. One that fell back to TCP counts for both.",
		"transport", "result")
	fencesDesc        = desc("peer_fences_total", "Ends of stator-transfer that kept late bytes of a failed transfer out of the store.")
	leasedDesc        = desc("peer_leased_blocks", "Blocks that are held for other nodes that read them by NIXL.")
	objectRefusedDesc = desc("refused_indexes_total",
		"Objects in the bucket that were refused: damaged, of another format, or written without the secret of this node.")
	packBytesDesc = desc("pack_bytes", "Memory, besides the host tier's, for blocks on their way to the bucket.")
)

// described has the descriptions of all figures.
var described = []*prometheus.Desc{
	sessionsDesc, refusedSessionsDesc, quarantinedDesc, slotsDesc, readyDesc, blocksDesc, committedDesc, foundDesc,
	fetchedDesc, refusedDesc, pinnedDesc, unpinnedDesc, copiedDesc, droppedDesc, failedDesc, loadedDesc, waitingDesc,
	healthyDesc, wrongDesc, storeErrorsDesc, peersDesc, peerMissingDesc, peerSentDesc, peerRefusedDesc, transfersDesc,
	fencesDesc, leasedDesc, objectRefusedDesc, packBytesDesc,
}

// desc describes a figure of a model's store.
func desc(name, help string, labels ...string) *prometheus.Desc {
	return metric.Desc("kvstore", name, help, append([]string{"model"}, labels...)...)
}

// collect reads the figures. Before the first engine there are only the figures of sessions.
func (n *Node) collect(out metric.Scrape) {
	model := []string{n.cfg.Model}
	gauge := func(d *prometheus.Desc, v int, labels ...string) {
		out.Gauge(d, float64(v), slices.Concat(model, labels)...)
	}
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		out.Counter(d, v, slices.Concat(model, labels)...)
	}
	sessions := n.server.Stats()
	gauge(sessionsDesc, sessions.Sessions)
	gauge(quarantinedDesc, sessions.Quarantined)
	counter(refusedSessionsDesc, sessions.Refused)

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
		gauge(slotsDesc, v, state)
	}
	gauge(readyDesc, int(n.arena.ReadyBytes()))
	gauge(blocksDesc, s.Slots.Active+s.Slots.Inactive, fleet.Host.String())
	counter(committedDesc, s.Committed)
	counter(foundDesc, s.Found)
	counter(fetchedDesc, s.Fetched)
	counter(refusedDesc, s.Refused)
	counter(pinnedDesc, s.Pinned)
	counter(unpinnedDesc, s.Unpinned)

	if n.peers != nil {
		p := n.peers.Stats()
		gauge(peersDesc, p.Reachable, "reachable")
		gauge(peersDesc, p.Peers-p.Reachable, "unreachable")
		gauge(peersDesc, p.Unused, "unused")
		counter(peerMissingDesc, p.Missing)
	}
	if n.streams != nil {
		st := n.streams.Stats()
		counter(peerSentDesc, uint64(st.Blocks))
		counter(peerRefusedDesc, uint64(st.Refused))
	}
	if n.direct != nil {
		d := n.direct.Stats()
		counter(transfersDesc, d.NIXLOK, "nixl", "ok")
		counter(transfersDesc, d.NIXLFailed, "nixl", "failed")
		counter(transfersDesc, d.TCPOK, "tcp", "ok")
		counter(transfersDesc, d.TCPFailed, "tcp", "failed")
		counter(fencesDesc, d.Fences)
		gauge(leasedDesc, d.Held)
	}
	if n.object != nil {
		o := n.object.Stats()
		counter(objectRefusedDesc, uint64(o.BadIndexes))
		gauge(packBytesDesc, int(o.PackBytes))
	}
	for _, t := range n.tiers() {
		gauge(blocksDesc, t.Blocks, t.Tier)
		counter(copiedDesc, t.Copied, t.Tier)
		counter(droppedDesc, t.Dropped, t.Tier)
		counter(failedDesc, t.Failed, t.Tier)
		counter(loadedDesc, t.Loaded, t.Tier)
		gauge(waitingDesc, t.Waiting, t.Tier)
		out.State(healthyDesc, t.Health == Healthy || t.Health == Degraded, n.cfg.Model, t.Tier)
		counter(wrongDesc, t.Damaged, t.Tier)
		counter(storeErrorsDesc, t.Errors, t.Tier)
	}
}
