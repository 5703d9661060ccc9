package xds

import (
	"slices"
	"strings"
	"time"

	"github.com/stator-project/stator/internal/fleet"
)

// linger is how long a worker that left stays listed as unhealthy. It is longer than the time that a decision needs
// to reach Envoy.
const linger = 2 * time.Second

// leavers has the workers that left within linger. The caller passes the time.
type leavers struct {
	present map[Leaving]bool      // workers in the last snapshot
	since   map[Leaving]time.Time // when workers left
}

func newLeavers() *leavers {
	return &leavers{present: map[Leaving]bool{}, since: map[Leaving]time.Time{}}
}

// update compares the fleet with the last one. It returns the workers that left within linger, sorted, and whether
// there are any, so that another update is necessary. A worker that comes back is not a leaver any more.
func (l *leavers) update(f *fleet.Snapshot, now time.Time) (left []Leaving, later bool) {
	here := map[Leaving]bool{}
	for _, w := range f.Workers {
		here[Leaving{w.Model, w.Address}] = true
	}
	for was := range l.present {
		if !here[was] {
			l.since[was] = now
		}
	}
	l.present = here

	for who, since := range l.since {
		if here[who] || now.Sub(since) >= linger {
			delete(l.since, who)
			continue
		}
		left = append(left, who)
	}
	// Sorted, because equal configurations must have equal bytes.
	slices.SortFunc(left, func(a, b Leaving) int { return strings.Compare(a.Model+a.Address, b.Model+b.Address) })
	return left, len(left) > 0
}
