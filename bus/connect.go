package bus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/internal/backoff"
	"github.com/stator-project/stator/internal/metric"
)

// Config is read by Connect and not changed later.
type Config struct {
	// URL is the address of the server, or of several, separated by commas. Embedded, if it is not nil, is
	// used instead.
	URL      string
	Embedded *Embedded
	// Login has the credentials that the server demands; the zero value is for a server that demands none.
	Login Login
	// Cluster separates fleets that share a server; it matches [a-z0-9-]+.
	Cluster string
	// LeaseTTL is the lifetime of a worker's lease. All members of a cluster must use the same.
	LeaseTTL time.Duration
	// Name is shown in the server's list of connections.
	Name string
	Log  *slog.Logger
	// Metrics registers the figures of this connection. Nil registers none.
	Metrics prometheus.Registerer
	// Intakes is the number of goroutines that read KV events; default is the number of CPUs that this process may use.
	Intakes int
	// Lost is called when the connection of the events breaks: events that are published before it is
	// back are lost. It must not block. Nil is not called.
	Lost func()
}

// Bus is a pair of connections to the bus that are restored automatically. Control carries leases, load, bookings,
// ends and requests; data carries events. A burst of events can thus not delay a lease.
type Bus struct {
	cfg     Config
	control *link
	data    *link
	js      jetstream.JetStream // on control
	holder  string              // names this process in its leases
	reader  *reader
	leases  leaseCounters
	stop    func() // ends the goroutine that logs, and waits for it

	mu      sync.Mutex
	back    chan struct{}                 // guarded by mu; closed and replaced at each reconnection
	buckets map[string]jetstream.KeyValue // guarded by mu; open ones by name, none after a reconnection
}

// Connect joins the bus. It waits for a server that is not there yet, or refuses the login, until ctx ends. An
// error before that is a mistake in cfg: an address or a file that cannot be read.
func Connect(ctx context.Context, cfg Config) (*Bus, error) {
	if cfg.Intakes <= 0 {
		cfg.Intakes = runtime.GOMAXPROCS(0)
	}
	cfg.Intakes = min(cfg.Intakes, maxIntakes)

	b := &Bus{
		cfg: cfg, holder: newHolder(), reader: newReader(&cfg), back: make(chan struct{}),
		buckets: map[string]jetstream.KeyValue{}, leases: newLeaseCounters(cfg.Metrics),
	}
	if err := b.connect(ctx); err != nil {
		return nil, fmt.Errorf("connect to bus %s: %w", Redacted(cfg.URL), err)
	}

	if cfg.Metrics != nil {
		cfg.Metrics.MustRegister(metric.Collector(b.collectLinks))
	}
	return b, nil
}

// connect opens both connections and waits until they are there.
func (b *Bus) connect(ctx context.Context) (err error) {
	b.control, err = b.open("control", nil)
	if err != nil {
		return err
	}
	b.data, err = b.open("data", b.cfg.Lost)
	if err != nil {
		b.control.nc.Close()
		return err
	}

	b.stop = b.logLosses()
	b.js, err = jetstream.New(b.control.nc)
	if err == nil {
		err = b.await(ctx)
	}
	if err != nil {
		b.close()
	}
	return err
}

// await waits until the connections are there. The client connects in the background, because the server
// may start after this process.
func (b *Bus) await(ctx context.Context) error {
	for !b.Connected() {
		if err := backoff.Sleep(ctx, 20*time.Millisecond); err != nil {
			return errors.Join(err, b.Err())
		}
	}
	return nil
}

// Close leaves the bus. Published messages are sent first, unless the server is away.
func (b *Bus) Close() {
	// Publish only fills a buffer. Without a flush the last messages would be lost.
	for _, l := range b.links() {
		if l.nc.IsConnected() {
			_ = l.nc.FlushTimeout(time.Second)
		}
	}
	b.close()
}

// close closes both connections and waits for the goroutine that logs.
func (b *Bus) close() {
	b.stop()
	for _, l := range b.links() {
		l.nc.Close()
	}
}

// links returns both connections.
func (b *Bus) links() []*link { return []*link{b.control, b.data} }

// Connected reports whether both connections are there now.
func (b *Bus) Connected() bool { return b.control.nc.IsConnected() && b.data.nc.IsConnected() }

// Err returns nil while both connections are there, and otherwise since when one is away and why.
func (b *Bus) Err() error {
	for _, l := range b.links() {
		if err := l.away(); err != nil {
			return err
		}
	}
	return nil
}

// reconnected wakes everything that must be set up again: a server that restarted has lost its buckets.
func (b *Bus) reconnected() {
	b.mu.Lock()
	defer b.mu.Unlock()

	clear(b.buckets)
	close(b.back)
	b.back = make(chan struct{})
}

// Back returns a channel that is closed at the next reconnection.
func (b *Bus) Back() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()

	return b.back
}

// subject returns a subject of this cluster.
func (b *Bus) subject(parts ...string) string {
	return "stator.v1." + b.cfg.Cluster + "." + strings.Join(parts, ".")
}
