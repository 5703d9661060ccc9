// Package sources publishes the counters of the event sources that a process reads now.
//
// Agents and routers both read engines' event sockets. Each of them has one [Set]: a source is in it from its
// start to its end, so a worker that is gone has no metrics. The counters of a new source begin at 0.
//
// # Concurrency
//
// All methods of [Set] are safe for concurrent use.
package sources

import (
	"cmp"
	"slices"
	"strconv"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/internal/kvsource"
	"github.com/stator-project/stator/internal/metric"
)

// Set holds the running sources of one process by worker and rank. It is a collector of their metrics.
type Set struct {
	gauges, counters []figure

	mu      sync.Mutex
	running map[key]*kvsource.Source // guarded by mu
}

// key names one rank of one worker.
type key struct {
	worker string
	rank   int
}

// figure is one metric of a source.
type figure struct {
	desc *prometheus.Desc
	read func(*kvsource.Stats) float64
}

// Register returns an empty set whose metrics are registered in reg, with the prefix of that part of the program.
func Register(reg prometheus.Registerer, part string) *Set {
	describe := func(name, help string, read func(*kvsource.Stats) float64) figure {
		return figure{metric.Desc(part, "source_"+name, help, "worker", "rank"), read}
	}
	s := &Set{running: map[key]*kvsource.Source{}}

	s.gauges = []figure{
		describe("connected", "1 while the rank's event socket is connected, and otherwise 0.", connected),
		describe("waiting_messages", "Messages of the rank that were received and wait to be applied.",
			func(st *kvsource.Stats) float64 { return float64(st.Waiting) }),
		describe("waiting_bytes", "Size of those messages.",
			func(st *kvsource.Stats) float64 { return float64(st.WaitingBytes) }),
	}
	s.counters = []figure{
		describe("messages_total", "Live messages received from the rank's event socket.",
			func(st *kvsource.Stats) float64 { return float64(st.Received) }),
		describe("replayed_total", "Messages received from the rank's replay socket.",
			func(st *kvsource.Stats) float64 { return float64(st.Replayed) }),
		describe("malformed_total", "Messages that could not be decoded.",
			func(st *kvsource.Stats) float64 { return float64(st.Malformed) }),
		describe("gaps_total", "Times that a message came while an earlier one was missing.",
			func(st *kvsource.Stats) float64 { return float64(st.Gaps) }),
		describe("unrecovered_total", "Messages applied although earlier ones were missing, because no replay had them.",
			func(st *kvsource.Stats) float64 { return float64(st.Unrecovered) }),
		describe("replay_errors_total", "Replays that broke off.",
			func(st *kvsource.Stats) float64 { return float64(st.ReplayErrors) }),
		describe("restarts_total", "Engine processes after the first.",
			func(st *kvsource.Stats) float64 { return float64(st.Restarts) }),
		describe("connects_total", "Connections to the rank's event socket, the first one included.",
			func(st *kvsource.Stats) float64 { return float64(st.Connects) }),
		describe("buffer_full_total", "Times that reading stopped because too many messages waited; the engine may drop messages then.",
			func(st *kvsource.Stats) float64 { return float64(st.BufferFull) }),
	}

	reg.MustRegister(s)
	return s
}

func connected(st *kvsource.Stats) float64 {
	if st.Connected {
		return 1
	}
	return 0
}

// Add adds the source of a rank that begins to run. remove takes it out again, unless another source of the rank
// has replaced it.
func (s *Set) Add(worker string, rank int, src *kvsource.Source) (remove func()) {
	k := key{worker, rank}
	s.mu.Lock()
	defer s.mu.Unlock()

	s.running[k] = src
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()

		if s.running[k] == src {
			delete(s.running, k)
		}
	}
}

// Source has the counts of one rank's source.
type Source struct {
	Worker string
	Rank   int
	kvsource.Stats
}

// All returns the sources that run now, sorted by worker and rank.
func (s *Set) All() []Source {
	s.mu.Lock()
	list := make([]Source, 0, len(s.running))
	for k, src := range s.running {
		list = append(list, Source{k.worker, k.rank, src.Stats()})
	}
	s.mu.Unlock()

	slices.SortFunc(list, func(a, b Source) int { return cmp.Or(cmp.Compare(a.Worker, b.Worker), a.Rank-b.Rank) })
	return list
}

// Describe sends the descriptions of the metrics.
func (s *Set) Describe(out chan<- *prometheus.Desc) {
	for _, f := range slices.Concat(s.gauges, s.counters) {
		out <- f.desc
	}
}

// Collect reads the counters of all running sources.
func (s *Set) Collect(out chan<- prometheus.Metric) {
	for _, src := range s.All() {
		rank := strconv.Itoa(src.Rank)
		for _, f := range s.gauges {
			out <- prometheus.MustNewConstMetric(f.desc, prometheus.GaugeValue, f.read(&src.Stats), src.Worker, rank)
		}
		for _, f := range s.counters {
			out <- prometheus.MustNewConstMetric(f.desc, prometheus.CounterValue, f.read(&src.Stats), src.Worker, rank)
		}
	}
}
