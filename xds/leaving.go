package xds

import (
	"slices"
	"strings"
	"time"

	"github.com/stator-project/stator/internal/fleet"
)

// linger is how long the endpoint of a worker that has gone stays listed as unhealthy: longer
// than a decision takes to reach Envoy.
const linger = 2 * time.Second

// leavers remembers workers that have gone. It is pure: the time is passed in.
type leavers struct {
	present map[Leaving]bool
	since   map[Leaving]time.Time
}

func newLeavers() *leavers {
	return &leavers{present: map[Leaving]bool{}, since: map[Leaving]time.Time{}}
}

// update takes the fleet as it is now and returns who has left within linger, in order, and
// whether anyone is to be forgotten later.
func (l *leavers) update(f *fleet.Snapshot, now time.Time) (left []Leaving, later bool) {
	here := map[Leaving]bool{}
	for _, w := range f.Workers {
		if _, serves := healthOf(w.State); serves {
			here[Leaving{w.Model, w.Address}] = true
		}
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
	slices.SortFunc(left, func(a, b Leaving) int { return strings.Compare(a.Model+a.Address, b.Model+b.Address) })
	return left, len(left) > 0
}
