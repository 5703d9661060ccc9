package bus

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/stator-project/stator/bus/busv1"
	"github.com/stator-project/stator/internal/fleet"
)

// Drain is an operator's last order for a worker, or for all workers of a node.
//
// Orders are plain messages and no entries of a bucket: all routers and control planes keep them, and publish them again. So they outlive
// the server, and each of these processes but the last.
type Drain struct {
	Name string
	// At is the time of the order. Of two orders for one name the later one counts.
	At time.Time
	// Over means that the order ended a drain.
	Over bool
}

// MaxDrains bounds the orders in one message.
const MaxDrains = 4096

// drainsSubject returns the subject of orders.
func (b *Bus) drainsSubject() string { return b.subject("drains") }

// ExchangeDrains publishes orders and receives those of other processes until ctx ends. It returns nil. apply is called for each
// message, and current before each.
//
//	event                                effect
//	the subscription begins              an empty list is published if there are no orders: others answer it with theirs
//	an empty list arrives                the orders are published
//	changed has a value                  the same
//	a third of the lifetime of leases    the same
//	reconnection                         the same
func (b *Bus) ExchangeDrains(ctx context.Context, current func() []Drain, apply func([]Drain), changed <-chan struct{}) error {
	var all sync.WaitGroup
	defer all.Wait()
	// Whoever starts asks all others, so each answer would be sent many times without this.
	asked := make(chan struct{}, 1) // has one place: a question that finds it full is answered with the one before it
	all.Go(func() { b.holdDrains(ctx, current, changed, asked) })

	begun := func() { b.publishDrains(current()) }
	b.keepSubscribed(ctx, b.drainsSubject(), warnDrains, "drains of operators do not arrive here", begun, func(m *nats.Msg) {
		var received busv1.Drains
		list, err := decodeDrains(&received, m.Data, time.Now())
		if !b.reader.accept(kindDrains, m.Subject, &received, err) {
			return
		}
		if len(list) > 0 {
			apply(list)
			return
		}
		select {
		case asked <- struct{}{}:
		default:
		}
	})
	return nil
}

// holdDrains publishes orders until ctx ends. Nothing is published while there are none.
func (b *Bus) holdDrains(ctx context.Context, current func() []Drain, changed, asked <-chan struct{}) {
	again := time.NewTicker(b.cfg.LeaseTTL / 3)
	defer again.Stop()
	for {
		reconnected := b.Back()
		select {
		case <-again.C:
		case <-changed:
		case <-asked:
		case <-reconnected:
		case <-ctx.Done():
			return
		}
		if list := current(); len(list) > 0 {
			b.publishDrains(list)
		}
	}
}

// publishDrains publishes orders. Nothing waits for a reconnection, because they are published again then.
func (b *Bus) publishDrains(list []Drain) {
	if !b.control.nc.IsConnected() {
		return
	}
	if err := b.control.nc.Publish(b.drainsSubject(), encode(drainsMessage(list))); err != nil {
		b.cfg.Log.Debug("drains not published; trying again", "err", err)
	}
}

// drainsMessage returns the message of orders.
func drainsMessage(list []Drain) *busv1.Drains {
	m := &busv1.Drains{}
	for _, d := range list {
		m.Drains = append(m.Drains, &busv1.Drain{Name: d.Name, AtMilliseconds: d.At.UnixMilli(), Over: d.Over})
	}
	return m
}

// decodeDrains returns the orders in data, by way of the empty message m.
func decodeDrains(m *busv1.Drains, data []byte, now time.Time) ([]Drain, error) {
	if err := decode(m, data); err != nil {
		return nil, err
	}
	if len(m.Drains) > MaxDrains {
		return nil, fmt.Errorf("%d drains: there must be at most %d", len(m.Drains), MaxDrains)
	}
	list := make([]Drain, 0, len(m.Drains))
	for _, d := range m.Drains {
		// A node's name has the form of a worker's without a node.
		if !fleet.ValidWorkerName(d.Name) {
			return nil, fmt.Errorf("%.80q is the name of no worker and of no node", d.Name)
		}
		// An order from the future would beat all that operators give until then.
		at := time.UnixMilli(d.AtMilliseconds)
		if at.After(now.Add(maxTermAhead)) {
			return nil, fmt.Errorf("the order for %s is more than %s ahead of this machine's clock", d.Name, maxTermAhead)
		}
		list = append(list, Drain{Name: d.Name, At: at, Over: d.Over})
	}
	return list, nil
}
