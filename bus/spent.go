package bus

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"unicode/utf8"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/stator-project/stator/bus/busv1"
)

// spentBucket is the key-value bucket of the tokens that tenants have used of their budgets. All routers write its only entry: each adds
// its own tokens to the sums that are there. So a router that starts knows the sums, and no entry of a router that has gone is left.
//
// Routers read it every few seconds by requests and do not watch it, because a role that writes a bucket must have no consumer on it: see
// [User.Permissions]. The entry has no lifetime: by its periods readers see whether it still counts.
const (
	spentBucket = "budgets"
	spentKey    = "spent"
)

const (
	// maxSpentName bounds the name of a tenant in bytes, and maxSpent a sum of tokens.
	maxSpentName = 128
	maxSpent     = 1 << 60
	// spentAttempts bounds the attempts of one call. Another router has written between reading and writing in each of them.
	spentAttempts = 3
)

// Spent are the tokens that tenants have used of their budgets.
type Spent struct {
	// Day and Month number the periods of the sums.
	Day, Month int64
	// Tokens has the sums of the day and of the month for each tenant, of at most 128 bytes of UTF-8. All of them must fit in 512 KiB.
	Tokens map[string][2]int64
}

// UpdateSpent replaces the sums by the ones that merge returns for those that are there. Nothing is written if merge returns false, and it
// is called again if another router has written meanwhile. A value that cannot be read counts as none, and is replaced.
//
// stored is called with the sums that were written. After an error it was called if the server may have written them.
func (b *Bus) UpdateSpent(ctx context.Context, merge func(there Spent) (next Spent, write bool), stored func(Spent)) error {
	if !b.control.nc.IsConnected() {
		return errors.New("share used tokens: the bus is away")
	}
	ctx, cancel := context.WithTimeout(ctx, publishTime)
	defer cancel()

	var err error
	for range spentAttempts {
		err = b.updateSpentOnce(ctx, merge, stored)
		if !errors.Is(err, jetstream.ErrKeyExists) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("share used tokens: %w", err)
	}
	return nil
}

// updateSpentOnce makes one attempt:
//
//	event                                   effect
//	there is no entry, or it was deleted    merge gets no sums, and the entry is created
//	another router has written meanwhile    jetstream.ErrKeyExists, and nothing is stored
//	the answer to the write is lost         stored is called, and the error is returned
//	merge has nothing to add                nothing is written
func (b *Bus) updateSpentOnce(ctx context.Context, merge func(there Spent) (next Spent, write bool), stored func(Spent)) error {
	kv, err := b.bucket(ctx, spentBucket, 0)
	if err != nil {
		return err
	}
	var there Spent
	var revision uint64
	entry, err := kv.Get(ctx, spentKey)
	switch {
	case errors.Is(err, jetstream.ErrKeyNotFound):
	case err != nil:
		b.forgetBucket(spentBucket) // the server may have lost it
		return err
	default:
		revision = entry.Revision()
		there = b.readSpent(entry.Value())
	}

	next, write := merge(there)
	if !write {
		return nil
	}
	data := encode(spentMessage(&next))
	if revision == 0 {
		_, err = kv.Create(ctx, spentKey, data)
	} else {
		_, err = kv.Update(ctx, spentKey, data, revision)
	}
	if !errors.Is(err, jetstream.ErrKeyExists) {
		stored(next)
	}
	return err
}

// readSpent returns the sums in a value; none if it cannot be read.
func (b *Bus) readSpent(value []byte) Spent {
	var received busv1.Spent
	s, err := decodeSpent(&received, value)
	if !b.reader.accept(kindSpent, spentKey, &received, err) {
		return Spent{}
	}
	return s
}

// spentMessage returns the message of sums.
func spentMessage(s *Spent) *busv1.Spent {
	m := &busv1.Spent{Day: s.Day, Month: s.Month}
	for _, tenant := range slices.Sorted(maps.Keys(s.Tokens)) {
		n := s.Tokens[tenant]
		m.Tenants = append(m.Tenants, &busv1.TenantSpent{Tenant: tenant, DayTokens: uint64(n[0]), MonthTokens: uint64(n[1])})
	}
	return m
}

// decodeSpent returns the sums in data, by way of the empty message m.
func decodeSpent(m *busv1.Spent, data []byte) (Spent, error) {
	if err := decode(m, data); err != nil {
		return Spent{}, err
	}
	s := Spent{Day: m.Day, Month: m.Month, Tokens: make(map[string][2]int64, len(m.Tenants))}
	for _, t := range m.Tenants {
		_, twice := s.Tokens[t.Tenant]
		switch {
		case len(t.Tenant) > maxSpentName || !utf8.ValidString(t.Tenant) || twice:
			return Spent{}, fmt.Errorf("tenant %.80q is there twice, longer than %d bytes, or no UTF-8", t.Tenant, maxSpentName)
		case max(t.DayTokens, t.MonthTokens) > maxSpent:
			return Spent{}, fmt.Errorf("tenant %.80q has used %d and %d tokens: sums are at most %d",
				t.Tenant, t.DayTokens, t.MonthTokens, maxSpent)
		}
		s.Tokens[t.Tenant] = [2]int64{int64(t.DayTokens), int64(t.MonthTokens)}
	}
	return s, nil
}
