package bus

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/stator-project/stator/bus/busv1"
)

// leaderBucket is the bucket of the lease of the leading planner, which is its only entry.
const (
	leaderBucket = "leader"
	leaderKey    = "planner"
)

// leadership is the state of one process that wants to lead.
//
//	state      event                          effect                                          next state
//	waiting    the lease is free              created with a new term; lead is called         leading
//	waiting    another process holds it       -                                               waiting, again in a third of the lifetime
//	leading    a third of the lifetime passed renewed at its revision                         leading
//	leading    the renewal finds another      lead's context ends                             waiting, when lead has returned
//	leading    no renewal for two thirds      the same: another process may lead soon         waiting
//	leading    the context ends               lead's context ends; the lease is deleted       -
//
// A term is the time at which it began, in milliseconds since 1970, and greater than the term of the last plan. So plans of a
// leader that has not noticed its loss yet have an earlier term, and are refused by the bus and by all that apply plans.
//
// The lease has the same lifetime as the leases of workers. A new leader thus begins after that time at the latest, and at once
// if the previous one has resigned. Two leaders at a time are possible for a moment, if a process stands still: the terms of
// their plans differ.
type leadership struct {
	bus      *Bus
	revision uint64    // of the lease as this process wrote it; 0 while it is not held
	term     uint64    // of this leadership; it does not change with renewals
	renewed  time.Time // when the last write that succeeded began
}

// Lead calls lead whenever this process becomes the leading planner, until ctx ends. The context of lead ends when the leadership is lost
// or ctx ends; lead must return then. It returns nil.
func (b *Bus) Lead(ctx context.Context, lead func(ctx context.Context, term uint64)) error {
	for ctx.Err() == nil {
		l := &leadership{bus: b}
		if !l.await(ctx) {
			return nil
		}

		// The next claim waits until all of this leadership has ended.
		leading, stop := context.WithCancel(ctx)
		var leader sync.WaitGroup
		leader.Go(func() { lead(leading, l.term) })
		l.keep(ctx)
		stop()
		leader.Wait()
		l.resign()
	}
	return nil
}

// await claims the lease until it is this process's. Planners that stand by do so about once a second, and all at once if the bus
// was away: the planner whose claim the server stores first leads. It returns false when ctx ends first.
func (l *leadership) await(ctx context.Context) bool {
	for {
		// Taken before the lease is claimed: a reconnection in between must not be missed.
		reconnected := l.bus.Back()
		err := l.claim(ctx)
		if err == nil {
			return true
		}
		if !errors.Is(err, jetstream.ErrKeyExists) && ctx.Err() == nil {
			l.bus.cfg.Log.Debug("leadership not claimed; trying again", "err", err)
		}

		pause := time.NewTimer(min(retryClaim, l.bus.cfg.LeaseTTL/3))
		select {
		case <-pause.C:
		case <-reconnected:
		case <-ctx.Done():
			pause.Stop()
			return false
		}
		pause.Stop()
	}
}

// claim creates the lease with a new term. jetstream.ErrKeyExists means that another process leads, or that this one's earlier lease has
// not expired yet.
func (l *leadership) claim(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, l.bus.cfg.LeaseTTL)
	defer cancel()
	last, err := l.bus.lastTerm(ctx)
	if err != nil {
		return err
	}
	kv, err := l.bus.bucket(ctx, leaderBucket, l.bus.cfg.LeaseTTL)
	if err != nil {
		return err
	}

	// The clock of this machine may be behind an earlier leader's clock.
	l.term = max(uint64(time.Now().UnixMilli()), last+1)
	began := time.Now()
	l.revision, err = kv.Create(ctx, leaderKey, l.value())
	if err != nil {
		return l.bus.checkBucket(leaderBucket, err)
	}
	l.renewed = began
	return nil
}

// value returns the bytes of the lease.
func (l *leadership) value() []byte {
	host, _ := os.Hostname() // for people; it may be empty
	return encode(&busv1.Leader{Holder: l.bus.holder, Term: l.term, Host: host})
}

// keep renews the lease until it is lost or ctx ends. A renewal that fails is repeated after a third of the lifetime, so one that is lost
// on the way does not end the leadership.
func (l *leadership) keep(ctx context.Context) {
	tick := time.NewTicker(l.bus.cfg.LeaseTTL / 3)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}

		began := time.Now()
		err := l.renew(ctx)
		switch {
		case err == nil:
			l.renewed = began
		case errors.Is(err, jetstream.ErrKeyRevisionMismatch):
			l.revision = 0
			l.bus.cfg.Log.Warn("another planner leads now", "term", l.term)
			return
		case time.Since(l.renewed) > l.bus.cfg.LeaseTTL*2/3:
			l.bus.cfg.Log.Warn("leadership given up: its lease could not be renewed", "err", err)
			return
		}
	}
}

// renew writes the lease at its revision. The value is the same each time; the write alone makes the lease live longer. It must not take
// longer than the time until the next renewal.
func (l *leadership) renew(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, l.bus.cfg.LeaseTTL/3)
	defer cancel()
	kv, err := l.bus.bucket(ctx, leaderBucket, l.bus.cfg.LeaseTTL)
	if err != nil {
		return err
	}
	revision, err := kv.Update(ctx, leaderKey, l.value(), l.revision)
	if err != nil {
		return l.bus.checkBucket(leaderBucket, err)
	}
	l.revision = revision
	return nil
}

// resign deletes the lease, so that another planner need not wait for it to expire.
func (l *leadership) resign() {
	if l.revision != 0 {
		l.bus.deleteKey(leaderBucket, leaderKey, "leadership", jetstream.LastRevision(l.revision))
	}
}

// lastTerm returns the term of the last plan; 0 if there is none, or if an earlier release wrote it. A server that has lost its memory
// has no plan, and the clock alone makes the next term a later one.
func (b *Bus) lastTerm(ctx context.Context) (uint64, error) {
	kv, err := b.bucket(ctx, planBucket, 0)
	if err != nil {
		return 0, err
	}
	_, value, err := fencedPlan.readValue(ctx, kv)
	if err != nil || value == nil {
		return 0, b.checkBucket(planBucket, err)
	}
	return fencedPlan.term(value), nil
}
