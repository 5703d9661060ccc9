package discovery

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/internal/fleet"
)

// keepOrders is the time for which the end of a drain is kept, so that a process that was away for less learns of it.
const keepOrders = 24 * time.Hour

// Drains are operators' orders to take workers and nodes out of service. Create it with [NewDrains].
//
//	event                          effect on the fleet
//	a worker or a node is drained  its workers are draining: routers send them no requests, and Envoys none without a pick
//	the drain ends                 they are as their source, their health and the plan have them
//	a worker comes, or its engine  the same order holds
//	  is started again
//	orders of another process      of each name the later order counts
//	bus lost                       none
//
// A drain ends no request and no engine.
type Drains struct {
	fleet   *fleet.Fleet
	log     *slog.Logger
	changed chan struct{} // has one place: a change that finds it full is covered by the one before it

	mu     sync.Mutex
	orders map[string]bus.Drain // guarded by mu; by name, at most bus.MaxDrains
}

// NewDrains returns drains of a fleet, of which there are none.
func NewDrains(f *fleet.Fleet, log *slog.Logger) *Drains {
	return &Drains{fleet: f, log: log, changed: make(chan struct{}, 1), orders: map[string]bus.Drain{}}
}

// Set takes a worker, or all workers of a node, out of service, or puts them back.
func (d *Drains) Set(name string, drain bool, now time.Time) error {
	if !fleet.ValidWorkerName(name) {
		return fmt.Errorf("%.80q is the name of no worker and of no node", name)
	}
	d.mu.Lock()
	order := bus.Drain{Name: name, At: now, Over: !drain}
	if last, known := d.orders[name]; known && !order.At.After(last.At) {
		order.At = last.At.Add(time.Millisecond) // its clock is ahead of this one
	}
	full := !d.applyLocked(order)
	d.showLocked()
	d.mu.Unlock()
	if full {
		return fmt.Errorf("there are %d drains already", bus.MaxDrains)
	}

	select {
	case d.changed <- struct{}{}:
	default:
	}
	return nil
}

// Active returns the drains in force, in the order of their names.
func (d *Drains) Active() []bus.Drain {
	return slices.DeleteFunc(d.all(), func(x bus.Drain) bool { return x.Over })
}

// all returns all orders, in the order of their names.
func (d *Drains) all() []bus.Drain {
	d.mu.Lock()
	defer d.mu.Unlock()
	list := make([]bus.Drain, 0, len(d.orders))
	for _, x := range d.orders {
		list = append(list, x)
	}
	slices.SortFunc(list, func(a, b bus.Drain) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// Run exchanges orders with other processes on the bus until ctx ends.
func (d *Drains) Run(ctx context.Context, b *bus.Bus) {
	_ = b.ExchangeDrains(ctx, d.all, d.merge, d.changed)
}

// merge applies orders of another process.
func (d *Drains) merge(list []bus.Drain) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	for _, x := range list {
		if last, known := d.orders[x.Name]; !known || x.At.After(last.At) {
			d.applyLocked(x)
		}
	}
	for name, x := range d.orders {
		if x.Over && now.Sub(x.At) > keepOrders {
			delete(d.orders, name)
		}
	}
	d.showLocked()
}

// applyLocked records an order. It returns false if there is no room. mu is held.
func (d *Drains) applyLocked(x bus.Drain) bool {
	last, known := d.orders[x.Name]
	if !known && len(d.orders) >= bus.MaxDrains {
		return false
	}
	d.orders[x.Name] = x
	if known && last.Over == x.Over || !known && x.Over {
		return true
	}
	if x.Over {
		d.log.Info("drain ended by an operator", "name", x.Name)
	} else {
		d.log.Info("drained by an operator: it gets no requests any more", "name", x.Name)
	}
	return true
}

// showLocked gives the fleet the drains in force. mu is held.
func (d *Drains) showLocked() {
	names := map[string]bool{}
	for _, x := range d.orders {
		if !x.Over {
			names[x.Name] = true
		}
	}
	d.fleet.SetWithheld(names)
}
