package discovery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/stator-project/stator/internal/backoff"
	"github.com/stator-project/stator/internal/fleet"
)

// Picks, endpoints, access logs and leases name workers by ip:port. So a DNS name of a listed worker is looked up here, beside
// the list, and nothing else in the program knows names:
//
//	worker                          its name is looked up again
//	ready                           after 30 s, or at once when it is not ready any more
//	not ready, or without address   after half a second; the pause doubles up to 3 s
//
// All processes must find the same address. Each looks names up by itself at other times, so the choice between several
// IPs depends on nothing but the answer: the lowest one, IPv4 first.

const (
	// lookupTime bounds one lookup.
	lookupTime = 2 * time.Second
	// lookupAgain is the pause between lookups for a ready worker. An engine whose address changes while it serves is rare.
	lookupAgain = 30 * time.Second
	// lookupSoon and lookupLate bound the pauses for a worker that is not ready. lookupLate is also the longest time between
	// the moments at which two processes find that an engine has moved.
	lookupSoon = 500 * time.Millisecond
	lookupLate = 3 * time.Second
	// lookupsAtOnce bounds the lookups at the same time.
	lookupsAtOnce = 16
)

// Resolver looks up the IPs of a host. A [net.Resolver] is one.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// ResolveConfig is read by Resolve and not changed later.
type ResolveConfig struct {
	Listed *Listed
	Log    *slog.Logger
	// Resolver looks names up; nil uses the host's resolver.
	Resolver Resolver
	// Later is the time that a new address waits, unless the first lookup for a worker has found it. Meanwhile the
	// control plane finds it, too, and every Envoy receives its endpoint. 0 does not wait.
	Later time.Duration
	// Moved is called when a worker has another address, by several goroutines at a time. Nil is not called.
	Moved func()
}

// Resolve keeps the addresses of the listed workers that have a DNS name, until ctx ends.
func Resolve(ctx context.Context, cfg ResolveConfig) {
	if cfg.Resolver == nil {
		cfg.Resolver = net.DefaultResolver
	}
	r := &resolver{ResolveConfig: cfg, slots: make(chan struct{}, lookupsAtOnce)}
	follow(ctx, cfg.Listed.fleet, r.names, r.lookUpAgain)
}

// resolver looks names up. Each worker has its own goroutine, so that a name server that is silent for one delays no other.
type resolver struct {
	ResolveConfig
	slots chan struct{}
}

// listedName is a worker and the name that it is listed by.
type listedName struct{ worker, named string }

// names returns the workers that are listed by a name now.
func (r *resolver) names() map[listedName]bool {
	wanted := map[listedName]bool{}
	for _, w := range r.Listed.Workers() {
		if w.Named != "" {
			wanted[listedName{w.Name, w.Named}] = true
		}
	}
	return wanted
}

// lookUpAgain keeps the address of one worker until ctx ends.
func (r *resolver) lookUpAgain(ctx context.Context, n listedName) {
	host, port, _ := fleet.SplitName(n.named)
	log := nameLog{log: r.Log.With("worker", n.worker, "name", host)}
	pauses := backoff.Backoff{Min: lookupSoon, Max: lookupLate}

	for first := true; ctx.Err() == nil; first = false {
		ips, err := r.lookUp(ctx, host)
		if ctx.Err() != nil {
			return
		}
		log.found(ips, err, r.address(n))
		if err != nil {
			r.unresolved(n, err)
		} else if r.move(ctx, n, netip.AddrPortFrom(ips[0], port).String(), first) {
			log.log.Info("address of a worker found by its name", "address", r.address(n))
		}
		r.pause(ctx, n, &pauses)
	}
}

// lookUp returns the IPs of a host, at least one, and the lowest one first.
func (r *resolver) lookUp(ctx context.Context, host string) ([]netip.Addr, error) {
	select {
	case r.slots <- struct{}{}:
		defer func() { <-r.slots }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}

	ctx, cancel := context.WithTimeout(ctx, lookupTime)
	defer cancel()
	answer, err := r.Resolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, fmt.Errorf("its name %s does not resolve: %s", host, whyNot(err))
	}

	var ips []netip.Addr
	for _, ip := range answer {
		// Filters of name servers answer with 0.0.0.0, where this host would answer.
		if !ip.IsUnspecified() && !ip.IsMulticast() {
			ips = append(ips, ip.Unmap())
		}
	}
	slices.SortFunc(ips, netip.Addr.Compare)
	ips = slices.Compact(ips)
	if len(ips) == 0 {
		return nil, fmt.Errorf("its name %s does not resolve: the answer has no address of a host", host)
	}
	return ips, nil
}

// whyNot describes the error of a lookup in a few words. The rest of a DNSError has the name again, and the server that
// was asked last, which differs between attempts.
func whyNot(err error) string {
	var failed *net.DNSError
	isDNS := errors.As(err, &failed)
	switch {
	case errors.Is(err, context.DeadlineExceeded) || isDNS && failed.IsTimeout:
		return "no answer in time"
	case isDNS:
		return failed.Err
	}
	return err.Error()
}

// address returns the address that a worker has now; empty for none.
func (r *resolver) address(n listedName) string {
	if w := r.Listed.fleet.Snapshot().Worker(n.worker); w != nil && w.Named == n.named {
		return w.Address
	}
	return ""
}

// unresolved records why a worker without an address is not ready. One that has an address keeps it: its name server may be
// away while it serves.
func (r *resolver) unresolved(n listedName, err error) {
	now := time.Now()
	r.Listed.fleet.ObserveProbe(n.worker, "", fleet.Probe{Refused: true, Detail: err.Error(), Asked: now}, now)
}

// move gives a worker another address, and reports whether it was another one. The address of a first lookup is used at
// once.
func (r *resolver) move(ctx context.Context, n listedName, address string, first bool) bool {
	if address == r.address(n) {
		return false
	}
	if !first && backoff.Sleep(ctx, r.Later) != nil {
		return false
	}

	if err := r.Listed.setAddress(n.worker, n.named, address); err != nil {
		r.Log.Error("address of a worker not used", "worker", n.worker, "address", address, "err", err)
		return false
	}
	if r.Moved != nil {
		r.Moved()
	}
	return true
}

// pause waits until the name of a worker should be looked up again.
func (r *resolver) pause(ctx context.Context, n listedName, pauses *backoff.Backoff) {
	wasReady := r.isReady(n)
	length := lookupAgain
	if wasReady {
		pauses.Reset()
	} else {
		length = pauses.Next()
	}

	timer := time.NewTimer(length)
	defer timer.Stop()
	for {
		changed := r.Listed.fleet.Changed()
		if wasReady && !r.isReady(n) {
			return
		}
		select {
		case <-changed:
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// isReady reports whether a worker serves at the address that it has.
func (r *resolver) isReady(n listedName) bool {
	w := r.Listed.fleet.Snapshot().Worker(n.worker)
	return w != nil && w.State == fleet.Ready
}

// nameLog logs the changes of one worker's name, each thing once.
type nameLog struct {
	log     *slog.Logger
	failed  string // the last error; empty after an answer
	several bool   // the log has a line that the name has several IPs
}

// found logs the answer of a lookup, and the address that the worker had before.
func (l *nameLog) found(ips []netip.Addr, err error, address string) {
	switch {
	case err != nil && err.Error() == l.failed:
	case err != nil && address != "":
		l.failed = err.Error()
		l.log.Warn("name of a worker does not resolve; the worker keeps its address", "address", address, "err", err)
	case err != nil:
		l.failed = err.Error()
		l.log.Warn("name of a worker does not resolve; the worker is not ready", "err", err)
	default:
		l.failed = ""
	}

	if hasSeveral(ips) && !l.several {
		l.several = true
		l.log.Warn("name of a worker has several IPs, and only the lowest is used; list each engine as a worker, by the name of its pod "+
			"in a headless service, for example", "count", len(ips), "ips", ips[:min(len(ips), mostLogged)])
	}
}

// mostLogged bounds the IPs in a line of the log, because an answer may have thousands.
const mostLogged = 4

// hasSeveral reports whether there are several IPs of one kind. Many hosts have one of each kind.
func hasSeveral(ips []netip.Addr) bool {
	v4 := 0
	for _, ip := range ips {
		if ip.Is4() {
			v4++
		}
	}
	return v4 > 1 || len(ips)-v4 > 1
}
