package bus

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/stator-project/stator/internal/backoff"
)

// link is one connection to the server, with a record of its losses. All methods are safe for concurrent use.
//
//	event                         effect
//	the connection breaks         the time is recorded, and lost of open is called
//	an attempt to connect fails   the reason is recorded; another attempt follows
//	the login is refused          the same
//	away for longer than a second one warning a minute, with the reason and what to change
//	the connection is back        counted; Bus.Back is closed, so that watches and leases begin again
//	a subscription is too slow    NATS drops its messages, which are counted
type link struct {
	name string // in logs and metrics: control or data
	nc   *nats.Conn

	mu         sync.Mutex
	reconnects uint64                      // guarded by mu
	lost       time.Time                   // guarded by mu; when the connection broke, or began to be opened; zero while it is there
	err        error                       // guarded by mu; why it is not there; nil if unknown
	subs       map[*nats.Subscription]bool // guarded by mu; the open subscriptions
	dropped    uint64                      // guarded by mu; messages that closed subscriptions dropped
}

const (
	// reconnectWait is the time between two attempts to connect, and reconnectJitter is added to it: members
	// of a cluster must not all return in one moment to a server that has just started.
	reconnectWait   = 250 * time.Millisecond
	reconnectJitter = 100 * time.Millisecond
	// A server that has not answered maxPings pings, one every pingInterval, is away.
	pingInterval = 2 * time.Second
	maxPings     = 2
	// patience is the time that a connection may be away before it is logged.
	patience = time.Second
)

// open begins to connect. lost is called when the connection breaks; it may be nil.
func (b *Bus) open(name string, lost func()) (*link, error) {
	l := &link{name: name, lost: time.Now(), subs: map[*nats.Subscription]bool{}}
	opts, err := b.cfg.Login.options(b.cfg.URL)
	if err != nil {
		return nil, err
	}

	// The client reconnects for ever, also to a server that refused it: passwords are replaced on servers and
	// clients at different moments.
	opts = append(opts,
		nats.Name(b.cfg.Name+" "+name),
		nats.MaxReconnects(-1),
		nats.IgnoreAuthErrorAbort(),
		nats.ReconnectWait(reconnectWait),
		// A host that was cut off keeps its connections, which would need minutes to notice it.
		nats.PingInterval(pingInterval),
		nats.MaxPingsOutstanding(maxPings),
		nats.ReconnectJitter(reconnectJitter, reconnectJitter),
		nats.RetryOnFailedConnect(true),
		nats.ConnectHandler(func(*nats.Conn) { l.connected(false) }),
		nats.ReconnectErrHandler(func(_ *nats.Conn, err error) { l.failed(err) }),
		nats.ReconnectHandler(func(*nats.Conn) {
			l.connected(true)
			b.cfg.Log.Info("bus is back", "connection", name)
			b.reconnected()
		}),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			l.broke(err)
			if err != nil && lost != nil { // without an error Close was called
				lost()
			}
		}),
		nats.ErrorHandler(func(_ *nats.Conn, sub *nats.Subscription, err error) { b.clientError(l, sub, err) }),
	)

	// An embedded server is reached without a port, and knows the password of its owner.
	if b.cfg.Embedded != nil {
		opts = append(opts, b.cfg.Embedded.options()...)
	}

	l.nc, err = nats.Connect(b.cfg.URL, opts...)
	return l, err
}

// connected records that the connection is there, for the first time or again.
func (l *link) connected(again bool) {
	l.mu.Lock()
	defer l.mu.Unlock()

	l.lost = time.Time{}
	l.err = nil
	if again {
		l.reconnects++
	}
}

// broke records that the connection is away from now on.
func (l *link) broke(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()

	l.lost = time.Now()
	l.err = err
}

// failed records why an attempt to connect failed.
func (l *link) failed(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()

	l.err = err
}

// since returns when the connection broke; zero while it is there.
func (l *link) since() (lost time.Time, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()

	return l.lost, l.err
}

// away returns nil while the connection is there, and otherwise since when it is not, and what to do.
func (l *link) away() error {
	lost, err := l.since()
	if l.nc.IsConnected() || lost.IsZero() {
		return nil
	}

	// The client keeps the error of a login that was refused, and reports the error of an address that does not answer.
	switch last := l.nc.LastError(); {
	case last != nil:
		err = last
	case err == nil:
		err = nats.ErrNoServers
	}
	return fmt.Errorf("the %s connection to the bus is away since %s: %w: %s", l.name, lost.UTC().Format(time.RFC3339), err, remedy(err))
}

// remedy returns what to do about an error of an attempt to connect.
func remedy(err error) string {
	text := strings.ToLower(err.Error())
	switch {
	case errors.Is(err, nats.ErrAuthorization), errors.Is(err, nats.ErrAuthExpired), strings.Contains(text, "authorization violation"):
		return "check bus.user and bus.passwordFile, or bus.credentialsFile"
	case strings.Contains(text, "remote error: tls"), strings.Contains(text, "tls error"): // the server ended the handshake
		return "check bus.certFile and bus.keyFile"
	case strings.Contains(text, "x509:"), strings.Contains(text, "secure connection"):
		return "check bus.caFile and the host in bus.url"
	}
	return "start it, or correct bus.url"
}

// logLosses logs that a connection is away, once a minute, until stop is called. stop waits for the end. It looks at the
// state at intervals, because the client reports no attempt that hangs.
func (b *Bus) logLosses() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() { backoff.Every(ctx, patience/4, func(time.Time) { b.logLossesOnce() }) })
	return sync.OnceFunc(func() { cancel(); done.Wait() })
}

// logLossesOnce logs the first connection that is away for longer than its patience. One server serves both, so one
// line is enough.
func (b *Bus) logLossesOnce() {
	for _, l := range b.links() {
		lost, _ := l.since()
		err := l.away()
		if err == nil || time.Since(lost) < patience {
			continue
		}
		if b.reader.warnings.due(logKey{kind: warnAway}) {
			b.cfg.Log.Warn("waiting for the bus", "url", Redacted(b.cfg.URL), "err", err)
		}
		return
	}
}

// clientError logs an error that the client reports, once a minute for each kind. Drops are counted by the
// subscriptions themselves.
func (b *Bus) clientError(l *link, sub *nats.Subscription, err error) {
	subject := ""
	if sub != nil {
		subject = sub.Subject
	}

	switch {
	case errors.Is(err, nats.ErrSlowConsumer):
		if b.reader.warnings.due(logKey{kind: warnSlow}) {
			b.cfg.Log.Warn("bus messages dropped: this process is too slow for them", "connection", l.name, "subject", subject)
		}
	case errors.Is(err, nats.ErrPermissionViolation):
		if b.reader.warnings.due(logKey{kind: warnPermission}) {
			b.cfg.Log.Warn("the bus refuses an operation: the user needs the permissions of its role, see docs/security.md", "err", err)
		}
	default:
		b.cfg.Log.Debug("bus error", "connection", l.name, "err", err)
	}
}

// The bounds of the messages of one subscription that wait. NATS drops further messages.
const (
	maxWaitingMessages = 1 << 16
	maxWaitingBytes    = 32 << 20
)

// subscribe calls handle for every message of a subject, one at a time, until ctx ends.
func (l *link) subscribe(ctx context.Context, subject string, handle func(*nats.Msg)) error {
	return l.subscribeThen(ctx, subject, func() {}, handle)
}

// subscribeThen is subscribe that calls begun when a message that is published from then on would arrive.
func (l *link) subscribeThen(ctx context.Context, subject string, begun func(), handle func(*nats.Msg)) error {
	sub, err := l.nc.SubscribeSync(subject)
	if err != nil {
		return fmt.Errorf("subscribe to %s: %w", subject, err)
	}
	l.addSubscription(sub)
	defer l.remove(sub)
	if err := sub.SetPendingLimits(maxWaitingMessages, maxWaitingBytes); err != nil {
		return fmt.Errorf("subscribe to %s: %w", subject, err)
	}

	begun()

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

// keepSubscribed calls handle for every message of a subject until ctx ends, one at a time, and begun whenever the subscription begins.
// A subscription that fails is repeated. Its warnings are of one kind, and name the effect.
func (b *Bus) keepSubscribed(ctx context.Context, subject string, warning kind, effect string, begun func(), handle func(*nats.Msg)) {
	for ctx.Err() == nil {
		err := b.control.subscribeThen(ctx, subject, begun, handle)
		if err == nil {
			continue
		}
		if b.reader.warnings.due(logKey{kind: warning}) {
			b.cfg.Log.Warn("subscription ended; trying again", "effect", effect, "err", err)
		}
		_ = backoff.Sleep(ctx, retryLease) // the loop sees that ctx has ended
	}
}

// republish calls publish now, every third of the lifetime of leases, when changed has a value, and after each reconnection, until ctx
// ends. changed may be nil.
func (b *Bus) republish(ctx context.Context, changed <-chan struct{}, publish func()) {
	again := time.NewTicker(b.cfg.LeaseTTL / 3)
	defer again.Stop()
	for {
		// Taken before the message is published: a reconnection in between must not be missed.
		reconnected := b.Back()
		publish()
		select {
		case <-again.C:
		case <-changed:
		case <-reconnected:
		case <-ctx.Done():
			return
		}
	}
}

// addSubscription adds a subscription whose drops are counted.
func (l *link) addSubscription(sub *nats.Subscription) {
	l.mu.Lock()
	defer l.mu.Unlock()

	l.subs[sub] = true
}

// remove ends a subscription. Its drops stay counted.
func (l *link) remove(sub *nats.Subscription) {
	l.mu.Lock()
	defer l.mu.Unlock()

	l.dropped += dropped(sub)
	delete(l.subs, sub)
	_ = sub.Unsubscribe()
}

// dropped returns how many messages found the queue of a subscription full.
func dropped(sub *nats.Subscription) uint64 {
	n, err := sub.Dropped()
	if err != nil {
		return 0 // the connection was closed
	}
	return uint64(n)
}

// linkStats are the counters of a connection.
type linkStats struct {
	reconnects uint64
	dropped    uint64 // messages that subscriptions dropped, ended ones included
	pending    int    // messages that wait in open subscriptions
}

// stats returns the counters now.
func (l *link) stats() linkStats {
	l.mu.Lock()
	defer l.mu.Unlock()

	s := linkStats{reconnects: l.reconnects, dropped: l.dropped}
	for sub := range l.subs {
		s.dropped += dropped(sub)
		if waiting, _, err := sub.Pending(); err == nil {
			s.pending += waiting
		}
	}
	return s
}
