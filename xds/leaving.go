package xds

import (
	"slices"
	"strings"
	"time"

	"github.com/stator-project/stator/internal/fleet"
)

// linger is the time for which a worker that left stays listed as unhealthy. It is longer than the time that a
// decision needs to reach Envoy.
const linger = 2 * time.Second

// leavers has the workers of a pool that left within linger. The caller passes the time.
type leavers struct {
	present map[Leaving]bool      // workers in the last snapshot
	since   map[Leaving]time.Time // when workers left
}

func newLeavers() *leavers {
	return &leavers{present: map[Leaving]bool{}, since: map[Leaving]time.Time{}}
}

// update compares the workers of a model with the last ones. A worker that comes back is not a leaver any more.
func (l *leavers) update(model string, workers []*fleet.Worker, now time.Time) {
	here := map[Leaving]bool{}
	for _, w := range workers {
		here[Leaving{model, w.Address}] = true
		delete(l.since, Leaving{model, w.Address})
	}
	for was := range l.present {
		if !here[was] {
			l.since[was] = now
		}
	}
	l.present = here
}

// now returns the workers that left within linger, sorted, and when the first of them is to be forgotten; zero if there are none.
func (l *leavers) now(now time.Time) (left []Leaving, next time.Time) {
	for who, since := range l.since {
		forgotten := since.Add(linger)
		if !now.Before(forgotten) {
			delete(l.since, who)
			continue
		}
		left = append(left, who)
		if next.IsZero() || forgotten.Before(next) {
			next = forgotten
		}
	}
	// Sorted, because equal configurations must have equal bytes.
	slices.SortFunc(left, func(a, b Leaving) int { return strings.Compare(a.Model+a.Address, b.Model+b.Address) })
	return left, next
}
