package bus

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/stator-project/stator/bus/busv1"
	"github.com/stator-project/stator/internal/backoff"
)

// PartKind is a sort of process that publishes that it is there. Workers are leases, and not of these.
//
// Presence is in plain messages and in no bucket: routers alone read it, and a missed message is published again within a third of
// the lifetime of leases.
type PartKind string

// The kinds of parts. PartStore is an agent that has stores of KV blocks.
const (
	PartRouter  PartKind = "router"
	PartControl PartKind = "control_plane"
	PartPlanner PartKind = "planner"
	PartStore   PartKind = "kv_store"
)

// Plural returns the word for several parts of the kind, for people.
func (k PartKind) Plural() string {
	return map[PartKind]string{
		PartRouter: "routers", PartControl: "control planes", PartPlanner: "planners", PartStore: "agents with KV stores",
	}[k]
}

// PartKinds lists the kinds of parts.
var PartKinds = []PartKind{PartRouter, PartControl, PartPlanner, PartStore}

// The bounds of the parts that are kept. A cluster has fewer: they are for clients of the bus that publish under many names.
const (
	maxParts    = 1024 // of a kind
	maxPartName = 253  // bytes, as of a DNS name
)

// hereSubject returns the subject on which a part publishes. The node is a token of its own, as in other subjects of agents.
func (b *Bus) hereSubject(kind PartKind, node string) string {
	if kind == PartStore {
		return b.subject("here", string(kind), cmp.Or(node, noNode))
	}
	return b.subject("here", string(kind))
}

// HoldPart publishes that a part of this process is there, until ctx ends: every third of the lifetime of leases, and after each
// reconnection. node is the name of a store's node; other parts have the name of their machine. It returns nil.
func (b *Bus) HoldPart(ctx context.Context, kind PartKind, node string) error {
	host, _ := os.Hostname() // for people; it may be empty
	name := cmp.Or(node, host, "unnamed")
	here := &busv1.Here{Id: b.holder, Name: name[:min(len(name), maxPartName)]}
	publish := func() {
		if !b.control.nc.IsConnected() {
			return
		}
		if err := b.control.nc.Publish(b.hereSubject(kind, node), encode(here)); err != nil {
			b.cfg.Log.Debug("presence not published; trying again", "err", err)
		}
	}

	b.republish(ctx, nil, publish)
	here.Gone = true
	publish()
	return nil
}

// Parts are the parts of a cluster that are there. The zero value has none, and is not settled.
//
//	event                            effect
//	a part publishes                 it is there
//	a part ends                      it is gone at once
//	no message for a lifetime        it is gone
//	the bus is away                  no part goes; each has one lifetime after the return
//	a kind has maxParts              further ones are refused and counted
type Parts struct {
	mu    sync.Mutex
	since time.Time     // guarded by mu; the time from which on messages arrive
	full  time.Duration // guarded by mu; after this time every part that is there has published

	// there has the parts by kind and by the id of their process, at most maxParts of a kind. It is guarded by mu.
	there map[PartKind]map[string]presentPart
}

type presentPart struct {
	name string
	last time.Time // when it published last
}

// Names returns the names of the parts of a kind that are there, sorted. settled is false until each of them has had the time to publish.
func (p *Parts) Names(kind PartKind, now time.Time) (names []string, settled bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, x := range p.there[kind] {
		names = append(names, x.name)
	}
	slices.Sort(names)
	return names, !p.since.IsZero() && now.Sub(p.since) > p.full
}

// apply records a message. Each kind has its own bound, so that an agent can fill the room of stores alone.
func (p *Parts) apply(kind PartKind, m *busv1.Here, now time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	parts := p.there[kind]
	_, known := parts[m.Id]
	switch {
	case m.Gone:
		delete(parts, m.Id)
	case !known && len(parts) >= maxParts:
		return fmt.Errorf("there are %d parts already", maxParts)
	default:
		parts[m.Id] = presentPart{m.Name, now}
	}
	return nil
}

// expire removes the parts that have not published for a lifetime. While the bus is away none expires: they may live, and their messages do
// not arrive.
func (p *Parts) expire(lifetime time.Duration, connected bool, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, parts := range p.there {
		for id, x := range parts {
			switch {
			case !connected:
				parts[id] = presentPart{x.name, now}
			case now.Sub(x.last) > lifetime:
				delete(parts, id)
			}
		}
	}
}

// begin records that messages arrive from now on.
func (p *Parts) begin(full time.Duration, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.since = now
	p.full = full
	if p.there == nil {
		p.there = map[PartKind]map[string]presentPart{}
		for _, kind := range PartKinds {
			p.there[kind] = map[string]presentPart{}
		}
	}
}

// WatchParts keeps p up to date until ctx ends: with all parts of the cluster, also with the parts of this process.
func (b *Bus) WatchParts(ctx context.Context, p *Parts) {
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() {
		backoff.Every(ctx, b.cfg.LeaseTTL/checks, func(now time.Time) {
			p.expire(b.cfg.LeaseTTL, b.control.nc.IsConnected(), now)
		})
	})

	const effect = "the other parts of the cluster are not seen here"
	begun := func() { p.begin(b.cfg.LeaseTTL, time.Now()) }
	b.keepSubscribed(ctx, b.subject("here", ">"), warnParts, effect, begun, func(m *nats.Msg) {
		var here busv1.Here
		kind, err := b.decodeHere(&here, m)
		if err == nil {
			err = p.apply(kind, &here, time.Now())
		}
		b.reader.accept(kindHere, m.Subject, &here, err)
	})
}

// decodeHere fills the empty message here, and returns the kind in its subject. NATS has checked that the sender may publish there, so the
// subject counts, and a message cannot name another kind or node.
func (b *Bus) decodeHere(here *busv1.Here, m *nats.Msg) (PartKind, error) {
	if err := decode(here, m.Data); err != nil {
		return "", err
	}
	kind, node, _ := strings.Cut(strings.TrimPrefix(m.Subject, b.subject("here", "")), ".")
	switch of := PartKind(kind); {
	case !slices.Contains(PartKinds, of):
		return "", fmt.Errorf("%.80q is no part", kind)
	case !isPartName(here.Id) || !isPartName(here.Name):
		return "", fmt.Errorf("id %.80q or name %.80q is not valid", here.Id, here.Name)
	case of == PartStore && node != noNode && node != here.Name:
		return "", fmt.Errorf("the store is of node %.80q", here.Name)
	default:
		return of, nil
	}
}

// isPartName reports whether text is printable and neither empty nor too long. Names reach pages and logs, and a client of the bus may have
// sent any bytes.
func isPartName(text string) bool {
	return text != "" && len(text) <= maxPartName && !strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' })
}
