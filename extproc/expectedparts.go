package extproc

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/metric"
)

// expectedParts returns the numbers of the configuration. Kinds without one are left out: they are not compared. Workers are compared by
// [Expected], with their launches or with the plan.
func expectedParts(x *config.Expected) map[bus.PartKind]int {
	parts := map[bus.PartKind]int{}
	for kind, n := range map[bus.PartKind]int{
		bus.PartRouter: x.Routers, bus.PartControl: x.ControlPlanes, bus.PartPlanner: x.Planners, bus.PartStore: x.Stores,
	} {
		if n > 0 {
			parts[kind] = n
		}
	}
	return parts
}

// absentParts returns an error that names the kinds of parts of which there are fewer than expected, and those that are there; nil if
// there is none. A router that has just started does not know all of them yet, and one without a bus never does.
// A part is named by its machine, and a store by its node.
func (r *Router) absentParts() error {
	var errs []error
	want := r.expected.Load().parts
	for _, kind := range bus.PartKinds { // in this order, so that the page does not change with each look
		there, settled := r.parts.Names(kind, time.Now())
		if settled && len(there) < want[kind] {
			list := ""
			if len(there) > 0 {
				list = ": " + strings.Join(there, ", ")
			}
			errs = append(errs, fmt.Errorf("%d of %d %s are there%s", len(there), want[kind], kind.Plural(), list))
		}
	}
	return errors.Join(errs...)
}

// The parts of the cluster.
var (
	partsExpected = metric.Desc("cluster", "expected_parts",
		"Parts that the cluster should have, by the key expected of the configuration.", "part")
	partsThere = metric.Desc("cluster", "present_parts", "Parts of the cluster that publish on the bus.", "part")
)

// NewPartsCollector returns a collector of the numbers of parts: see [bus.Parts.Names]. want has the expected ones. It is a collector
// and no gauge that others set, because parts expire without an event.
func NewPartsCollector(names func(bus.PartKind, time.Time) (names []string, settled bool), want func() map[bus.PartKind]int,
) prometheus.Collector {
	return metric.Collector(func(out metric.Scrape) {
		expected := want()
		for _, kind := range bus.PartKinds {
			there, settled := names(kind, time.Now())
			// A router that cannot know the parts yet has no series, so that an alert for too few parts does not fire while it starts.
			if !settled {
				continue
			}
			out.Gauge(partsThere, float64(len(there)), string(kind))
			if expected[kind] > 0 {
				out.Gauge(partsExpected, float64(expected[kind]), string(kind))
			}
		}
	})
}
