package bus

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Config says which bus to join.
type Config struct {
	// URL is the server; Embedded is used instead where it is not nil.
	URL      string
	Embedded *Embedded
	// Cluster separates fleets that share a server; it matches [a-z0-9-]+.
	Cluster string
	// LeaseTTL is how long a worker stays in the fleet unheard. All members of a cluster must
	// use the same.
	LeaseTTL time.Duration
	// Name shows up in the server's list of connections.
	Name string
	Log  *slog.Logger
	// Lost is called when the connection breaks: what was published meanwhile is lost. It must
	// not block. Nil does nothing.
	Lost func()
}

// Bus is a connection that heals by itself.
type Bus struct {
	cfg Config
	nc  *nats.Conn
	js  jetstream.JetStream

	mu    sync.Mutex
	reset chan struct{} // guarded by mu; closed and replaced at each reconnection
}

// Connect joins the bus. A server that is not there yet is waited for until ctx ends.
func Connect(ctx context.Context, cfg Config) (*Bus, error) {
	b := &Bus{cfg: cfg, reset: make(chan struct{})}
	opts := []nats.Option{
		nats.Name(cfg.Name),
		nats.MaxReconnects(-1),
		nats.ReconnectWait(250 * time.Millisecond),
		nats.ReconnectJitter(100*time.Millisecond, 100*time.Millisecond),
		nats.RetryOnFailedConnect(true),
		nats.ReconnectHandler(func(*nats.Conn) { b.again() }),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err == nil {
				return // we closed it
			}
			cfg.Log.Warn("bus lost; the last known fleet stays in force", "err", err)
			if cfg.Lost != nil {
				cfg.Lost()
			}
		}),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { cfg.Log.Debug("bus error", "err", err) }),
	}
	if cfg.Embedded != nil {
		opts = append(opts, nats.InProcessServer(cfg.Embedded.srv))
	}
	nc, err := nats.Connect(cfg.URL, opts...)
	if err != nil {
		return nil, fmt.Errorf("connect to bus %s: %w", cfg.URL, err)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		nc.Close()
		return nil, fmt.Errorf("connect to bus %s: %w", cfg.URL, err)
	}
	b.nc, b.js = nc, js
	if err := b.await(ctx); err != nil {
		nc.Close()
		return nil, fmt.Errorf("connect to bus %s: %w", cfg.URL, err)
	}
	return b, nil
}

func (b *Bus) await(ctx context.Context) error {
	for !b.nc.IsConnected() {
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// Close leaves the bus; what was published is sent first.
func (b *Bus) Close() {
	_ = b.nc.FlushTimeout(time.Second)
	b.nc.Close()
}

// Connected says whether the server is there now.
func (b *Bus) Connected() bool { return b.nc.IsConnected() }

// again wakes everything that must be set up anew: a server that restarted has forgotten its
// buckets.
func (b *Bus) again() {
	b.cfg.Log.Info("bus is back")
	b.mu.Lock()
	defer b.mu.Unlock()
	close(b.reset)
	b.reset = make(chan struct{})
}

// Back returns a channel that is closed when the bus next comes back after it was away.
func (b *Bus) Back() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.reset
}

// bucket opens a key-value bucket and makes it where there is none. A ttl of 0 keeps keys.
func (b *Bus) bucket(ctx context.Context, name string, ttl time.Duration) (jetstream.KeyValue, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	cfg := jetstream.KeyValueConfig{
		Bucket: "stator-" + b.cfg.Cluster + "-" + name, Storage: jetstream.MemoryStorage, History: 1, TTL: ttl,
	}
	if ttl > 0 {
		cfg.LimitMarkerTTL = max(time.Second, ttl) // watchers hear of an expiry
	}
	kv, err := b.js.CreateOrUpdateKeyValue(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("open bucket %s: %w", cfg.Bucket, err)
	}
	return kv, nil
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
