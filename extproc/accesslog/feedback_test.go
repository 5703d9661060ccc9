package accesslog

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/stator-project/stator/extproc/exchange"
	"github.com/stator-project/stator/extproc/messages"
	"github.com/stator-project/stator/internal/route"
	"github.com/stator-project/stator/internal/route/pick"
	"github.com/stator-project/stator/test/testkit"
)

// feedback is a server with bookings and a log, and one Envoy that is connected. It runs in a bubble of synctest.
type feedback struct {
	*Server
	bookings *table
	log      testkit.Log
}

// withFeedback runs a test with a server whose sweeps run each second.
func withFeedback(t *testing.T, run func(t *testing.T, f *feedback)) {
	synctest.Test(t, func(t *testing.T) {
		f := &feedback{bookings: newTable()}
		f.Server = NewServer(Config{Bookings: f.bookings, Log: f.log.Logger(), Metrics: prometheus.NewRegistry()})
		c := connectTo(t, f.Server)
		_ = Source(streamOf(c, "edge"))
		run(t, f)
	})
}

// wait lets seconds pass.
func (f *feedback) wait(seconds int) {
	for range seconds {
		time.Sleep(time.Second)
		f.sweep(time.Now())
	}
}

// follow books a request of the Envoy and follows it.
func (f *feedback) follow(t *testing.T, id string) {
	t.Helper()
	if !f.Wanted("edge") || !f.Follow("edge", id) {
		t.Fatalf("request %s is not followed", id)
	}
	f.bookings.book(id, "edge")
}

// edge returns what is known of the Envoy.
func (f *feedback) edge() Envoy { return f.Envoys()[0] }

// TestStreamEndWithoutLog: the end of a stream waits for an entry until it is known that the Envoy has no log. Later ends
// count at once. One line names the remedy.
func TestStreamEndWithoutLog(t *testing.T) {
	withFeedback(t, func(t *testing.T, f *feedback) {
		for _, id := range []string{"1", "2", "3"} {
			f.follow(t, id)
		}
		f.Ended("edge", exchange.Ending{Booking: "1", Picked: "a"}, time.Now())
		f.wait(4)
		f.bookings.wantOpen(t, "4 s after the first end", "1 2 3")
		f.wait(2)
		f.bookings.wantOpen(t, "6 s after it", "2 3")
		f.Ended("edge", exchange.Ending{Booking: "2", Picked: "a", Status: 200, Served: "a", FirstByte: 1}, time.Now())
		f.Ended("edge", exchange.Ending{Booking: "3", Picked: "a"}, time.Now())
		f.bookings.wantOpen(t, "when the log is known to be missing", "")

		want := Envoy{Name: "edge", Ends: "stream_end", ByResponse: 1, ByStreamEnd: 2}
		if got := f.edge(); got != want || f.log.Count("stator envoy snippet") != 1 {
			t.Errorf("%+v, want %+v; log: %s", got, want, &f.log)
		}
		for outcome, n := range map[string]float64{Unconfirmed: 2, AsPicked: 1} {
			if got := testutil.ToFloat64(f.metrics.requests.WithLabelValues(outcome)); got != n {
				t.Errorf("%g %s, want %g", got, outcome, n)
			}
		}
	})
}

// TestEntryComesFirst: an entry ends a booking before its stream does, whichever arrives first, and counts once. Streams of its
// Envoy are not followed from then on, until its log was closed.
func TestEntryComesFirst(t *testing.T) {
	for name, streamFirst := range map[string]bool{"the stream ends first": true, "the entry arrives first": false} {
		t.Run(name, func(t *testing.T) {
			withFeedback(t, func(t *testing.T, f *feedback) {
				f.follow(t, "1")
				f.opened("edge")
				e := entry("1", "1", "a", "a")
				if !streamFirst {
					f.entry("edge", &e, time.Now())
				}
				f.Ended("edge", exchange.Ending{Booking: "1", Picked: "a"}, time.Now())
				if streamFirst {
					f.entry("edge", &e, time.Now())
				}
				f.wait(20)

				want := Envoy{Name: "edge", AccessLog: true, Ends: "access_log", ByAccessLog: 1}
				if got := f.edge(); got != want || f.log.Count("WARN") != 0 {
					t.Errorf("%+v, want %+v; log: %s", got, want, &f.log)
				}
				if n := testutil.ToFloat64(f.metrics.asPicked); n != 1 {
					t.Errorf("%g requests are counted", n)
				}
				if f.Wanted("edge") {
					t.Error("further streams are followed")
				}

				f.closed("edge")
				f.wait(10)
				if !f.Wanted("edge") {
					t.Error("streams are not followed although the log was closed")
				}
			})
		})
	}
}

// TestLogWithoutIDs: a log without the ids of decisions ends no booking, so that the streams count. An id that follows from
// that of the request ends its booking, and does not show that others will arrive.
func TestLogWithoutIDs(t *testing.T) {
	withFeedback(t, func(t *testing.T, f *feedback) {
		f.follow(t, "1")
		f.follow(t, "edge/left")
		f.entry("edge", &messages.Entry{Upstream: true, Served: "a"}, time.Now())
		f.Ended("edge", exchange.Ending{Booking: "1", Picked: "a"}, time.Now())
		f.Ended("edge", exchange.Ending{Booking: "edge/left", Picked: "a"}, time.Now())
		f.entry("edge", &messages.Entry{Left: true, RequestID: "left"}, time.Now())
		f.bookings.wantOpen(t, "after the entries", "1")
		f.wait(10)
		f.bookings.wantOpen(t, "after its stream has ended", "")
		want := Envoy{Name: "edge", Ends: "stream_end", ByStreamEnd: 1, ByAccessLog: 1}
		if got := f.edge(); got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
	})
}

// TestEntryOfAnotherRouter: the entry of a followed request that another router received shows that the Envoy has a log.
func TestEntryOfAnotherRouter(t *testing.T) {
	withFeedback(t, func(t *testing.T, f *feedback) {
		f.follow(t, "1")
		f.Ended("edge", exchange.Ending{Booking: "1", Picked: "a"}, time.Now())
		e := entry("1", "1", "a", "a")
		f.Apply(&e, time.Now())
		if got := f.edge(); !got.AccessLog || got.ByAccessLog != 1 || f.Wanted("edge") {
			t.Errorf("%+v", got)
		}
	})
}

// TestUnseenEnds: a request whose stream ends early stays booked until its engine's report ends the booking, which is counted.
func TestUnseenEnds(t *testing.T) {
	withFeedback(t, func(t *testing.T, f *feedback) {
		f.follow(t, "1")
		f.Ended("edge", exchange.Ending{Booking: "1", Picked: "a", Unseen: true}, time.Now())
		f.wait(20)
		f.bookings.wantOpen(t, "while the engine works", "1")
		f.bookings.Ended(route.Ending{ID: "1"}, time.Now())
		f.wait(1)
		want := Envoy{Name: "edge", Ends: "engines", ByEngines: 1}
		if got := f.edge(); got != want || f.log.Count("stator envoy snippet") != 1 || len(f.awaited) != 0 {
			t.Errorf("%+v, want %+v; log: %s", got, want, &f.log)
		}
	})
}

// TestFollowedStreamsAreBounded: the streams of one Envoy have a bound, and so have the ends that wait. Ends beyond it are
// applied at once.
func TestFollowedStreamsAreBounded(t *testing.T) {
	withFeedback(t, func(t *testing.T, f *feedback) {
		for i := range maxFollowed {
			f.follow(t, fmt.Sprint(i))
		}
		for i := range 3 {
			if f.Follow("edge", fmt.Sprint("more", i)) {
				t.Error("one more is followed")
			}
		}
		if f.edge().Followed != maxFollowed || f.log.Count("not followed") != 1 {
			t.Errorf("%+v; log: %s", f.edge(), &f.log)
		}
		f.Ended("edge", exchange.Ending{Booking: "0"}, time.Now())
		f.follow(t, "0")

		for i := len(f.awaited); i < maxAwaited; i++ {
			f.awaited[fmt.Sprint("fill", i)] = &end{source: "edge", due: time.Now().Add(time.Hour)}
		}
		f.Ended("edge", exchange.Ending{Booking: "5", Picked: "a"}, time.Now())
		if f.bookings.IsBooked("5") || len(f.awaited) != maxAwaited {
			t.Errorf("the end was not applied; %d wait", len(f.awaited))
		}
	})
}

// TestEnvoyThatIsGone: the streams of an Envoy that dies end with it. Its bookings end as those of every Envoy that is gone,
// without the line about a missing log, and it takes its state along.
func TestEnvoyThatIsGone(t *testing.T) {
	withFeedback(t, func(t *testing.T, f *feedback) {
		c := connectTo(t, f.Server)
		_ = Source(streamOf(c, "other"))
		for _, id := range []string{"1", "2", "3"} {
			f.bookings.book(id, "other")
			if !f.Follow("other", id) {
				t.Fatal("not followed")
			}
		}
		f.Ended("other", exchange.Ending{Booking: "1", Picked: "a"}, time.Now())
		f.Ended("other", exchange.Ending{Booking: "2", Picked: "a", Unseen: true}, time.Now())
		_ = c.Close()
		f.wait(20)
		f.Ended("other", exchange.Ending{Booking: "3", Picked: "a"}, time.Now())
		f.bookings.wantOpen(t, "after all", "")
		if n := testutil.ToFloat64(f.metrics.abandoned); n != 3 || f.log.Count("snippet") != 0 {
			t.Errorf("%g abandoned; log: %s", n, &f.log)
		}
		if len(f.Envoys()) != 1 || len(f.awaited) != 0 {
			t.Errorf("%d Envoys, %d ends wait", len(f.Envoys()), len(f.awaited))
		}
	})
}

// TestOutcomesOfFollowedRequests covers what a door sees of a response.
func TestOutcomesOfFollowedRequests(t *testing.T) {
	for name, c := range map[string]struct {
		ending  exchange.Ending
		outcome string
		route   route.Ending
	}{
		"nothing":              {exchange.Ending{}, Unconfirmed, route.Ending{}},
		"a status":             {exchange.Ending{Status: 200}, Unconfirmed, route.Ending{}},
		"as picked":            {exchange.Ending{Status: 200, Served: "a", FirstByte: 1}, AsPicked, route.Ending{Served: "a"}},
		"retried":              {exchange.Ending{Status: 200, Served: "b", FirstByte: 1}, Retried, route.Ending{Served: "b"}},
		"misdirected":          {exchange.Ending{Status: 200, Served: "c", FirstByte: 1}, Misdirected, route.Ending{Served: "c"}},
		"the client's mistake": {exchange.Ending{Status: 422, Served: "a"}, AsPicked, route.Ending{Served: "a", Refused: true}},
		"an error":             {exchange.Ending{Status: 500, Served: "a"}, Failed, route.Ending{Served: "a", Failed: true}},
		"an error of someone":  {exchange.Ending{Status: 500}, Failed, route.Ending{}},
		"an error of Envoy":    {exchange.Ending{Status: 503}, Failed, route.Ending{Failed: true}},
	} {
		f := &feedback{bookings: newTable("x")}
		var got route.Ending
		f.Server = NewServer(Config{Bookings: recorded{f.bookings, &got}, Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry()})
		c.ending.Booking, c.ending.Picked = "x", "a,b"
		c.route.ID = "x"
		f.applyEnd("edge", &c.ending, time.Now())
		if n := testutil.ToFloat64(f.metrics.requests.WithLabelValues(c.outcome)); n != 1 || got != c.route {
			t.Errorf("%s: %g %s, %+v; want %+v", name, n, c.outcome, got, c.route)
		}
	}
}

// recorded is bookings that keep the last ending.
type recorded struct {
	*table
	last *route.Ending
}

func (r recorded) Ended(e route.Ending, now time.Time) (pick.Booking, bool) {
	*r.last = e
	return r.table.Ended(e, now)
}

// TestMetricsOfEnds compares the series of an Envoy.
func TestMetricsOfEnds(t *testing.T) {
	b := newTable("1")
	s, reg := newServer(b)
	s.opened("edge")
	e := entry("1", "1", "a", "a")
	s.entry("edge", &e, time.Now())
	err := testutil.GatherAndCompare(reg, strings.NewReader(`
# HELP stator_accesslog_ends_total Bookings of each connected Envoy that have ended, by the source of the end: its access log, its response phases, the end of its ext_proc stream, or engines' reports that they are idle.
# TYPE stator_accesslog_ends_total counter
stator_accesslog_ends_total{envoy="edge",source="access_log"} 1
stator_accesslog_ends_total{envoy="edge",source="engines"} 0
stator_accesslog_ends_total{envoy="edge",source="response"} 0
stator_accesslog_ends_total{envoy="edge",source="stream_end"} 0
`), "stator_accesslog_ends_total")
	if err != nil {
		t.Error(err)
	}
}
