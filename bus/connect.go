package bus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/internal/backoff"
)

// Config is read by Connect and not changed later.
type Config struct {
	// URL is the address of the server. Embedded, if it is not nil, is used instead.
	URL      string
	Embedded *Embedded
	// Cluster separates fleets that share a server; it matches [a-z0-9-]+.
	Cluster string
	// LeaseTTL is the lifetime of a worker's lease. All members of a cluster must use the same.
	LeaseTTL time.Duration
	// Name is shown in the server's list of connections.
	Name string
	Log  *slog.Logger
	// Metrics registers the figures of this connection. Nil registers none.
	Metrics prometheus.Registerer
	// Intakes is how many goroutines read KV events; default is the number of CPUs that this process may use.
	Intakes int
	// Lost is called when the connection breaks: what is published before it is back is lost. It must
	// not block. Nil is not called.
	Lost func()
}

// Redacted returns the addresses of servers without user names, passwords and tokens, for logs and pages.
func Redacted(urls string) string {
	list := strings.Split(urls, ",")
	for i, text := range list {
		u, err := url.Parse(strings.TrimSpace(text))
		switch {
		case err != nil:
			list[i] = "(an address that cannot be read)"
		default:
			u.User = nil
			list[i] = u.String()
		}
	}
	return strings.Join(list, ",")
}

// Bus is a connection to the bus that is restored automatically.
type Bus struct {
	cfg    Config
	nc     *nats.Conn
	js     jetstream.JetStream
	reader *reader

	mu   sync.Mutex
	back chan struct{} // guarded by mu; closed and replaced at each reconnection
}

// Connect joins the bus. It waits for a server that is not there yet until ctx ends.
func Connect(ctx context.Context, cfg Config) (*Bus, error) {
	// The client reconnects for ever. Jitter keeps the members of a cluster from all returning in one
	// moment to a server that has just started.
	if cfg.Intakes <= 0 {
		cfg.Intakes = runtime.GOMAXPROCS(0)
	}
	cfg.Intakes = min(cfg.Intakes, maxIntakes)
	b := &Bus{cfg: cfg, reader: newReader(&cfg), back: make(chan struct{})}
	opts := []nats.Option{
		nats.Name(cfg.Name),
		nats.MaxReconnects(-1),
		nats.ReconnectWait(250 * time.Millisecond),
		nats.ReconnectJitter(100*time.Millisecond, 100*time.Millisecond),
		nats.RetryOnFailedConnect(true),
		nats.ReconnectHandler(func(*nats.Conn) { b.reconnected() }),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err == nil {
				return // Close was called
			}
			cfg.Log.Warn("bus lost; the last known fleet stays in force", "err", err)
			if cfg.Lost != nil {
				cfg.Lost()
			}
		}),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { cfg.Log.Debug("bus error", "err", err) }),
	}

	// An embedded server is reached without a port.
	if cfg.Embedded != nil {
		opts = append(opts, nats.InProcessServer(cfg.Embedded.srv))
	}

	nc, err := nats.Connect(cfg.URL, opts...)
	if err != nil {
		return nil, fmt.Errorf("connect to bus %s: %w", Redacted(cfg.URL), err)
	}

	js, err := jetstream.New(nc)
	if err != nil {
		nc.Close()
		return nil, fmt.Errorf("connect to bus %s: %w", Redacted(cfg.URL), err)
	}

	b.nc, b.js = nc, js
	if err := b.await(ctx); err != nil {
		nc.Close()
		return nil, fmt.Errorf("connect to bus %s: %w", Redacted(cfg.URL), err)
	}
	return b, nil
}

// await waits until the connection is there. The client connects in the background, because the server
// may start after this process.
func (b *Bus) await(ctx context.Context) error {
	for !b.nc.IsConnected() {
		if err := backoff.Sleep(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// Close leaves the bus. What was published is sent first, unless the server is away.
func (b *Bus) Close() {
	// Publish only fills a buffer. Without a flush the last messages would be lost.
	if b.nc.IsConnected() {
		_ = b.nc.FlushTimeout(time.Second)
	}
	b.nc.Close()
}

// Connected reports whether the connection is there now.
func (b *Bus) Connected() bool { return b.nc.IsConnected() }

// reconnected wakes everything that must be set up again: a server that restarted has lost its buckets.
func (b *Bus) reconnected() {
	b.cfg.Log.Info("bus is back")
	b.mu.Lock()
	defer b.mu.Unlock()

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

// The bounds of the messages of one subscription that wait. NATS drops what comes beyond.
const (
	maxWaitingMessages = 1 << 16
	maxWaitingBytes    = 32 << 20
)

// subscribe calls handle for every message, one at a time, until ctx ends.
func (b *Bus) subscribe(ctx context.Context, subject string, handle func(*nats.Msg)) error {
	sub, err := b.nc.SubscribeSync(subject)
	if err != nil {
		return fmt.Errorf("subscribe to %s: %w", subject, err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	if err := sub.SetPendingLimits(maxWaitingMessages, maxWaitingBytes); err != nil {
		return fmt.Errorf("subscribe to %s: %w", subject, err)
	}

	// The client keeps the messages that wait. It reports once that it has dropped some.
	for {
		m, err := sub.NextMsgWithContext(ctx)
		switch {
		case err == nil:
			handle(m)
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, nats.ErrSlowConsumer): // messages were dropped; the next ones follow
		default:
			return fmt.Errorf("subscribe to %s: %w", subject, err)
		}
	}
}

// bucket opens a key-value bucket, and creates it when there is none. Entries live for ttl; 0 keeps them.
func (b *Bus) bucket(ctx context.Context, name string, ttl time.Duration) (jetstream.KeyValue, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	cfg := jetstream.KeyValueConfig{
		Bucket: "stator-" + b.cfg.Cluster + "-" + name, Storage: jetstream.MemoryStorage, History: 1, TTL: ttl,
	}
	if ttl > 0 {
		cfg.LimitMarkerTTL = max(time.Second, ttl) // with it watchers receive expiries
	}

	// The bucket is created by the first member that needs it, and again after the server lost it.
	kv, err := b.js.CreateOrUpdateKeyValue(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("open bucket %s: %w", cfg.Bucket, err)
	}
	return kv, nil
}
