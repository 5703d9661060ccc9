package extproc

import (
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/extproc/messages"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/metric"
)

const (
	// maxForeign bounds the ends that wait to be published. They wait for publishEvery.
	maxForeign = 1 << 16
	// maxEnds bounds the ends in one message: they take far less than a megabyte.
	maxEnds = 1000
	// peerSilence is the time without a message after which another replica counts as gone. Replicas publish their
	// bookings every two seconds at least.
	peerSilence = 10 * time.Second
	// warnEvery is the least time between two warnings about ends that cannot be passed on.
	warnEvery = time.Minute
)

// foreignEnds passes the ends of other replicas' requests on. Envoy sends decisions to all replicas and its access
// log to one of them, so most ends arrive at a replica that did not decide.
//
// All methods are safe for concurrent use.
type foreignEnds struct {
	log     *slog.Logger
	results *prometheus.CounterVec

	mu      sync.Mutex
	hasBus  bool                        // guarded by mu
	pending map[string][]bus.RequestEnd // guarded by mu; by replica
	count   int                         // guarded by mu; in pending, at most maxForeign
	seen    map[string]time.Time        // guarded by mu; when another replica published last
	warned  time.Time                   // guarded by mu
}

// The values of the label result.
const (
	endForwarded = "forwarded" // published on the bus
	endDropped   = "dropped"   // the queue was full, or the bus did not accept it
	endNoBus     = "no_bus"    // there is no bus
)

func newForeignEnds(log *slog.Logger, reg prometheus.Registerer) *foreignEnds {
	f := &foreignEnds{
		log: log, pending: map[string][]bus.RequestEnd{}, seen: map[string]time.Time{},
		results: metric.For(reg, "accesslog").Counters("foreign_ends_total",
			"Access-log entries of requests that another replica of the router decided: forwarded over the bus, dropped, or without a bus.",
			"result"),
	}
	for _, result := range []string{endForwarded, endDropped, endNoBus} {
		f.results.WithLabelValues(result)
	}
	return f
}

// join records that there is a bus from now on.
func (f *foreignEnds) join() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hasBus = true
}

// observe records that another replica has published something.
func (f *foreignEnds) observe(replica string, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, last := range f.seen {
		if now.Sub(last) > peerSilence {
			delete(f.seen, name)
		}
	}
	f.seen[replica] = now
}

// queueEnd queues the end of a request of another replica. It returns false if no such replica is known: the request may
// be one of an earlier process, and nobody else counts it.
func (f *foreignEnds) queueEnd(replica string, e *messages.Entry, now time.Time) (known bool) {
	f.mu.Lock()
	defer f.mu.Unlock()

	// A name that is no replica's would become a subject of the bus, so it is checked.
	last, published := f.seen[replica]
	known = published && now.Sub(last) <= peerSilence
	switch {
	case !f.hasBus:
		f.results.WithLabelValues(endNoBus).Inc()
		f.warnLocked(now)
	case f.count >= maxForeign || !fleet.ValidName(replica):
		f.results.WithLabelValues(endDropped).Inc()
	default:
		f.pending[replica] = append(f.pending[replica], bus.RequestEnd(*e))
		f.count++
	}
	return known
}

// warnLocked logs that ends are lost, at most once a minute. mu is held.
func (f *foreignEnds) warnLocked(now time.Time) {
	if now.Sub(f.warned) < warnEvery {
		return
	}
	f.warned = now
	f.log.Warn("requests ended here that another router decided, and there is no bus to tell it: its bookings stay. " +
		"Several routers behind one Envoy need --peers or bus.url. A router that has just restarted without others can ignore this")
}

// flush publishes the ends that wait. Ends that the bus does not accept are dropped: their bookings stay until their engine is empty, and a
// queue without a bound would not bring the bus back.
func (f *foreignEnds) flush(b *bus.Bus) {
	for replica, ends := range f.take() {
		for len(ends) > 0 {
			n := min(len(ends), maxEnds)
			result := endForwarded
			if err := b.PublishEnds(replica, ends[:n]); err != nil {
				result = endDropped
				f.log.Debug("ends of requests not forwarded", "replica", replica, "ends", n, "err", err)
			}
			f.results.WithLabelValues(result).Add(float64(n))
			ends = ends[n:]
		}
	}
}

// take empties the queue; nil if it is empty.
func (f *foreignEnds) take() map[string][]bus.RequestEnd {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.count == 0 {
		return nil
	}
	pending := f.pending
	f.pending = map[string][]bus.RequestEnd{}
	f.count = 0
	return pending
}
