package bus

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// expiry finds the keys of a bucket that their writers do not renew any more. It is a part of watchers.
//
// The server could mark expired entries for its watchers, but only in buckets whose rules let a client that may write
// one key delete all others.
type expiry struct {
	bus  *Bus
	gone func(key string) // called for each key that has expired
	due  map[string]time.Time
}

// newExpiry returns an expiry without keys.
func (b *Bus) newExpiry(gone func(key string)) expiry {
	return expiry{bus: b, gone: gone, due: map[string]time.Time{}}
}

// checkTime is the longest time that one answer about a key may take.
const checkTime = 2 * time.Second

// renewed records a write of a key.
func (e *expiry) renewed(key string) { e.due[key] = time.Now().Add(e.bus.cfg.LeaseTTL) }

// started gives every known key one lifetime to be written again.
func (e *expiry) started() {
	for key := range e.due {
		e.renewed(key)
	}
}

// check finds the keys that the server no longer has. Silence alone removes none: it may be the connection's.
func (e *expiry) check(ctx context.Context, kv jetstream.KeyValue) {
	if !e.bus.control.nc.IsConnected() {
		return
	}

	now := time.Now()
	for key, due := range e.due {
		if now.Before(due) {
			continue
		}
		isGone, err := keyIsGone(ctx, kv, key)
		switch {
		case err != nil:
			return // the server does not answer, so the last known entries stay in force
		case isGone:
			delete(e.due, key)
			e.gone(key)
		default: // it is about to expire, or its renewal is on the way
			e.due[key] = now.Add(e.bus.cfg.LeaseTTL / checks)
		}
	}
}

// keyIsGone reports whether the server has no entry of a key.
func keyIsGone(ctx context.Context, kv jetstream.KeyValue, key string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()

	_, err := kv.Get(ctx, key)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return true, nil // ErrKeyDeleted is one of these
	}
	return false, err
}
