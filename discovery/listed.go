package discovery

import (
	"fmt"
	"hash/crc32"
	"slices"
	"strings"
	"sync"

	"github.com/stator-project/stator/internal/fleet"
)

// Listed has the workers that a configuration lists, and keeps them in a fleet while the configuration changes. Leases on the
// bus do not replace them. A nil Listed has none. All methods are safe for concurrent use.
//
//	change of a worker in the list        worker in the fleet
//	added                                 added; starting until its engine answers, see [Probe]
//	weight, taints, blocks                changed; its bookings and its cache stay
//	address, model or anything else       replaced by a new epoch: it is another engine
//	removed                               removed
//
// A worker that is listed by a DNS name has no address until [Resolve] has found one, and is starting:
//
//	change of the address that was found  worker in the fleet
//	none yet                              starting, with the reason as the cause of its health
//	first, or another one                 replaced by a new epoch
//	none any more                         keeps the last one; probes judge it
type Listed struct {
	fleet *fleet.Fleet

	mu sync.Mutex
	// As configured, with their epochs, and with the addresses that names have; guarded by mu.
	workers map[string]fleet.Worker
}

// NewListed puts the workers of a configuration into a fleet.
func NewListed(f *fleet.Fleet, workers []fleet.Worker) (*Listed, error) {
	l := &Listed{fleet: f, workers: map[string]fleet.Worker{}}
	return l, l.Set(workers)
}

// Has reports whether the configuration lists a worker of that name.
func (l *Listed) Has(name string) bool {
	if l == nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	_, ok := l.workers[name]
	return ok
}

// Workers returns the workers as configured, with their epochs and the addresses that names have, sorted by name.
func (l *Listed) Workers() []fleet.Worker {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []fleet.Worker
	for _, w := range l.workers {
		all = append(all, w)
	}
	slices.SortFunc(all, func(a, b fleet.Worker) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// Set makes these the workers of the configuration. After an error nothing has changed.
func (l *Listed) Set(workers []fleet.Worker) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range workers {
		if l.workers[workers[i].Name] == workers[i] {
			continue
		}
		if err := workers[i].Validate(); err != nil {
			return fmt.Errorf("add worker of the configuration: %w", err)
		}
	}

	next := map[string]fleet.Worker{}
	for _, w := range workers {
		if old := l.workers[w.Name]; w.Named != "" && w.Named == old.Named {
			w.Address = old.Address
		}
		w.State = stateOf(&w)
		if err := l.putLocked(&w); err != nil {
			return fmt.Errorf("add worker of the configuration: %w", err)
		}
		next[w.Name] = w
	}

	for name := range l.workers {
		if _, stays := next[name]; !stays {
			l.fleet.Remove(name)
		}
	}
	l.workers = next
	return nil
}

// Drop removes the workers that are not among these, and changes nothing else.
func (l *Listed) Drop(workers []fleet.Worker) {
	stays := map[string]bool{}
	for _, w := range workers {
		stays[w.Name] = true
	}

	l.mu.Lock()
	defer l.mu.Unlock()
	for name := range l.workers {
		if !stays[name] {
			l.fleet.Remove(name)
			delete(l.workers, name)
		}
	}
}

// stateOf returns the state that the configuration reports of a worker. Its engine is asked for all else.
func stateOf(w *fleet.Worker) fleet.State {
	if w.Address == "" {
		return fleet.Starting
	}
	return fleet.Ready
}

// setAddress sets the address that the name of a worker has. It does nothing if that is its address, or if the worker is
// not listed by that name any more.
func (l *Listed) setAddress(worker, named, address string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	w, ok := l.workers[worker]
	if !ok || w.Named != named || w.Address == address {
		return nil
	}

	w.Address = address
	w.State = stateOf(&w)
	w.Epoch = epochAt(w.Epoch, address)
	_, err := l.fleet.Put(w)
	if err == nil {
		l.workers[worker] = w
	}
	return err
}

// changeBits is the number of bits of an epoch that count the changes of a worker in the configuration.
const changeBits = 16

// epochAt returns the epoch of a worker whose name has this address. Routers exchange bookings by epoch, and have seen
// other histories of the name, so the address itself is in it: above the number of changes of the configuration.
func epochAt(epoch uint64, address string) uint64 {
	return uint64(crc32.ChecksumIEEE([]byte(address)))<<changeBits | epoch&(1<<changeBits-1)
}

// putLocked adds or changes a worker, and sets its epoch. The engine's own reports stay.
func (l *Listed) putLocked(w *fleet.Worker) error {
	old, known := l.workers[w.Name]
	if known && *w == old {
		return nil
	}
	if known && w.Epoch == 0 { // otherwise its source distinguishes starts
		w.Epoch = old.Epoch
		if identity(*w) != identity(old) {
			w.Epoch++
			if w.Address == "" {
				w.Epoch &= 1<<changeBits - 1 // it has lost the address that its epoch has
			}
		}
	}

	if !known || w.Epoch != old.Epoch {
		_, err := l.fleet.Put(*w)
		return err
	}
	_, err := l.fleet.Update(w.Name, func(now *fleet.Worker) {
		now.Weight = w.Weight
		now.Taints = w.Taints
		now.PlaceFrom = w.PlaceFrom
		if w.Blocks != old.Blocks {
			now.Blocks = w.Blocks
		}
	})
	return err
}

// identity is a worker without the fields that may change while it is the same engine.
func identity(w fleet.Worker) fleet.Worker {
	w.Weight = 0
	w.Taints = ""
	w.PlaceFrom = 0
	w.Blocks = 0
	return w
}
