package stream

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/internal/route/peers"
)

var (
	peersLive     = desc("peers", "replicas", "Other replicas of the router that are heard of.")
	peersBooked   = desc("peers", "bookings", "Requests that other replicas have booked.")
	peersMessages = desc("peers", "messages_total", "Messages of other replicas about their bookings: applied, old (late or doubled), lost (never heard, by their numbers).", "result")
	peersDiffered = desc("peers", "differed_total", "Messages after which a replica's bookings were not what it said: something was lost, and is said again within two seconds.")
	peersExpired  = desc("peers", "expired_total", "Replicas that fell silent, whose bookings were forgotten.")
)

// peersCollector publishes what is heard of other replicas.
type peersCollector struct{ peers *peers.Receiver }

// NewPeersCollector returns a collector of what is heard of the router's other replicas.
func NewPeersCollector(p *peers.Receiver) prometheus.Collector { return peersCollector{p} }

// Describe lists nothing: see collector.
func (c peersCollector) Describe(chan<- *prometheus.Desc) {}

// Collect reads all figures.
func (c peersCollector) Collect(out chan<- prometheus.Metric) {
	s := c.peers.Stats()
	out <- prometheus.MustNewConstMetric(peersLive, prometheus.GaugeValue, float64(s.Live))
	out <- prometheus.MustNewConstMetric(peersBooked, prometheus.GaugeValue, float64(s.Booked))
	for result, n := range map[string]uint64{"applied": s.Messages, "old": s.Old, "lost": s.Lost} {
		out <- prometheus.MustNewConstMetric(peersMessages, prometheus.CounterValue, float64(n), result)
	}
	out <- prometheus.MustNewConstMetric(peersDiffered, prometheus.CounterValue, float64(s.Differed))
	out <- prometheus.MustNewConstMetric(peersExpired, prometheus.CounterValue, float64(s.Expired))
}
