package bus

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/internal/metric"
)

// The figures of connections. They exist once for each of the two connections of a process, and count from its
// start.
var (
	linkConnected  = metric.Desc("bus", "connected", "1 while the connection to the bus is there, else 0.", "connection")
	linkReconnects = metric.Desc("bus", "reconnects_total", "Times that the connection was lost and came back.", "connection")
	linkDropped    = metric.Desc("bus", "dropped_messages_total",
		"Messages that subscriptions of this process dropped because it was too slow.", "connection")
	linkPending = metric.Desc("bus", "pending_messages", "Messages that were received and wait to be handled.", "connection")
)

// collectLinks reads the figures of connections.
func (b *Bus) collectLinks(out metric.Scrape) {
	for _, l := range b.links() {
		s := l.stats()
		out.State(linkConnected, l.nc.IsConnected(), l.name)
		out.Counter(linkReconnects, s.reconnects, l.name)
		out.Counter(linkDropped, s.dropped, l.name)
		out.Gauge(linkPending, float64(s.pending), l.name)
	}
}

// leaseCounters count what happens to the leases of this process. A worker that is lost and claimed again within its
// lifetime has left no router's fleet.
type leaseCounters struct {
	lost, conflicts, failures prometheus.Counter
}

// newLeaseCounters registers the counters in reg, which may be nil.
func newLeaseCounters(reg prometheus.Registerer) leaseCounters {
	part := metric.For(orUnread(reg), "bus")
	return leaseCounters{
		lost: part.Counter("leases_lost_total",
			"Leases of this process that were gone or replaced when they were renewed."),
		conflicts: part.Counter("lease_conflicts_total",
			"Names of workers of this process that a living agent elsewhere holds; the worker is not advertised."),
		failures: part.Counter("lease_failures_total", "Writes of leases that failed; they are repeated."),
	}
}

// orUnread returns reg, or a registry that nothing reads in its place.
func orUnread(reg prometheus.Registerer) prometheus.Registerer {
	if reg == nil {
		return prometheus.NewRegistry()
	}
	return reg
}
