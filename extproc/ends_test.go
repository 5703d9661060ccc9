package extproc

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/stator-project/stator/extproc/messages"
	"github.com/stator-project/stator/test/testkit"
)

// TestForeignEndsAreBounded: ends wait for the bus up to a bound, and names that are no replica's never become subjects.
// Without a bus they are counted, and a warning names the remedy once a minute.
func TestForeignEndsAreBounded(t *testing.T) {
	var log testkit.Log
	f := newForeignEnds(log.Logger(), prometheus.NewRegistry())
	e := &messages.Entry{Booking: "b"}
	count := func(result string) int { return int(testutil.ToFloat64(f.results.WithLabelValues(result))) }

	now := time.Unix(1_000_000, 0)
	f.queueEnd("other", e, now)
	f.queueEnd("other", e, now.Add(time.Second))
	f.queueEnd("other", e, now.Add(2*time.Minute))
	if n := strings.Count(log.String(), "bus.url"); n != 2 || count(endNoBus) != 3 {
		t.Errorf("without a bus: %d warnings, %d ends counted", n, count(endNoBus))
	}

	f.join()
	for range maxForeign + 10 {
		f.queueEnd("other", e, now)
	}
	f.queueEnd("*", e, now)
	if n := len(f.take()["other"]); n != maxForeign || count(endDropped) != 11 {
		t.Errorf("%d ends wait, %d were dropped", n, count(endDropped))
	}
	if len(f.take()) != 0 {
		t.Error("ends are published twice")
	}
}

// TestForeignEndsOfUnknownReplicas: a replica is known while it publishes. The ends of others are counted here.
func TestForeignEndsOfUnknownReplicas(t *testing.T) {
	var log testkit.Log
	f := newForeignEnds(log.Logger(), prometheus.NewRegistry())
	f.join()
	e, now := &messages.Entry{Booking: "b"}, time.Unix(1_000_000, 0)
	if f.queueEnd("other", e, now) {
		t.Error("a replica that has published nothing is known")
	}
	f.observe("other", now)
	if !f.queueEnd("other", e, now.Add(time.Second)) {
		t.Error("a replica that has just published is not known")
	}
	f.observe("third", now.Add(time.Hour))
	if f.queueEnd("other", e, now.Add(time.Hour)) || len(f.seen) != 1 {
		t.Errorf("a replica that is silent is known: %v", f.seen)
	}
}
