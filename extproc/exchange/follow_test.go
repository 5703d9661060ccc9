package exchange

import (
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/internal/route"
	"github.com/stator-project/stator/internal/route/decision"
)

// ends is a Feedback that ends bookings at once and keeps the endings that it receives.
type ends struct {
	router   *route.Router
	unwanted bool
	full     bool
	followed int
	got      []Ending
}

func (e *ends) Wanted(string) bool { return !e.unwanted }

func (e *ends) Follow(string, string) bool {
	if !e.full {
		e.followed++
	}
	return !e.full
}

func (e *ends) Ended(_ string, ending Ending, now time.Time) {
	e.got = append(e.got, ending)
	if !ending.Unseen {
		e.router.End(ending.Booking, now)
	}
}

const question = `{"model": "sim", "prompt": "hello"}`

// asked returns an exchange whose request was decided, the reply, and the Feedback that receives its end.
func asked(t *testing.T, change func(*ends)) (x *Exchange, r Reply, e *ends) {
	t.Helper()
	s, router := newService(t)
	e = &ends{router: router}
	if change != nil {
		change(e)
	}
	s.feedback = e
	made := s.Begin(Origin{Source: "edge"})
	x = &made
	x.OnHeaders(Head{Method: "POST", Path: "/v1/completions"}, start)
	return x, x.OnBody([]byte(question), true, start.Add(time.Second)), e
}

// at returns a time after the headers of the request.
func at(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }

// TestFollowedResponses: a door hands in the events of a response, and the end is reported once.
func TestFollowedResponses(t *testing.T) {
	ok := Response{Status: 200, Served: "10.0.0.1:8000"}
	events := Response{Status: 200, EventStream: true}
	for name, c := range map[string]struct {
		events func(x *Exchange)
		want   Ending // without the booking and the pick
	}{
		"no response phases": {func(x *Exchange) { x.OnEnd(true, at(5)) }, Ending{}},
		"a whole response": {func(x *Exchange) {
			x.OnResponse(ok, false, at(2))
			x.OnResponseBody(10, false, at(3))
			x.OnResponseBody(5, true, at(4))
			x.OnEnd(true, at(9))
		}, Ending{Status: 200, Served: "10.0.0.1:8000", FirstByte: 2 * time.Second, FirstToken: 3 * time.Second, LastByte: 4 * time.Second, ResponseBytes: 15}},
		"headers alone, then the end": {func(x *Exchange) {
			x.OnResponse(events, false, at(2))
			x.OnEnd(true, at(7))
		}, Ending{Status: 200, FirstByte: 2 * time.Second, LastByte: 7 * time.Second}},
		"a response without a body": {func(x *Exchange) { x.OnResponse(Response{Status: 503}, true, at(3)) },
			Ending{Status: 503, FirstByte: 3 * time.Second, LastByte: 3 * time.Second}},
		"no more events during a stream of events": {func(x *Exchange) {
			x.OnResponse(events, false, at(2))
			x.OnEnd(false, at(2))
		}, Ending{Status: 200, FirstByte: 2 * time.Second, Unseen: true}},
		"no more events after the headers of another response": {func(x *Exchange) {
			x.OnResponse(ok, false, at(2))
			x.OnEnd(false, at(2))
		}, Ending{Status: 200, Served: "10.0.0.1:8000", FirstByte: 2 * time.Second, LastByte: 2 * time.Second}},
		"no more events":       {func(x *Exchange) { x.OnEnd(false, at(2)) }, Ending{Unseen: true}},
		"a panic of the door":  {func(x *Exchange) { x.OnPanic("bug", nil, at(2)) }, Ending{}},
		"a reply was not read": {func(x *Exchange) { x.OnUndelivered(&decision.Decision{ID: x.Booking()}, at(2)) }, Ending{}},
		"events after the end": {func(x *Exchange) {
			x.OnEnd(true, at(2))
			x.OnResponse(ok, true, at(3))
			x.OnResponseBody(1, true, at(4))
		}, Ending{}},
		"the same moment counts": {func(x *Exchange) { x.OnResponse(ok, true, start) },
			Ending{Status: 200, Served: "10.0.0.1:8000", FirstByte: 1, LastByte: 1}},
	} {
		x, r, e := asked(t, nil)
		if !r.Follow || x.Phase() != Following || r.Pick == nil {
			t.Fatalf("%s: not followed: %+v", name, r)
		}
		c.want.Booking = x.Booking()
		c.want.Picked = r.Destinations
		c.events(x)
		if len(e.got) != 1 || e.got[0] != c.want {
			t.Errorf("%s: %+v, want %+v", name, e.got, c.want)
			continue
		}
		if open := e.router.Bookings(); (open == 1) != c.want.Unseen || x.Phase() != Finished {
			t.Errorf("%s: %d booked, phase %d", name, open, x.Phase())
		}
	}
}

// TestWhatIsNotFollowed: requests of an Envoy with an access log, requests without room, refused ones and
// requests that are not booked.
func TestWhatIsNotFollowed(t *testing.T) {
	for name, change := range map[string]func(*ends){
		"an access log": func(e *ends) { e.unwanted = true },
		"no room":       func(e *ends) { e.full = true },
	} {
		x, r, e := asked(t, change)
		x.OnEnd(true, at(9))
		if r.Follow || r.Pick == nil || len(e.got) != 0 || e.router.Bookings() != 1 {
			t.Errorf("%s: %+v, %d ends", name, r, len(e.got))
		}
	}

	s, router := newService(t)
	e := &ends{router: router}
	s.feedback = e
	for name, h := range map[string]Head{
		"no body":     {Method: "POST", Path: "/v1/completions", WithoutBody: true},
		"unread":      {Method: "POST", Path: "/v1/completions", Unread: "a reason"},
		"refused":     {Method: "PUT", Path: "/v1/completions"},
		"a local one": {Method: "GET", Path: "/live"},
	} {
		x := s.Begin(Origin{Source: "edge"})
		if r := x.OnHeaders(h, start); r.Follow || !r.Last {
			t.Errorf("%s: %+v", name, r)
		}
		x.OnEnd(true, start)
	}
	x := s.Begin(Origin{Source: "edge"})
	x.OnHeaders(Head{Method: "POST", Path: "/v1/completions"}, start)
	if r := x.OnBody([]byte("{"), true, start); r.Follow || r.Answer == nil {
		t.Errorf("a wrong body: %+v", r)
	}
	if e.followed != 0 || len(e.got) != 0 || router.Bookings() != 0 {
		t.Errorf("%d followed, %d ends, %d booked", e.followed, len(e.got), router.Bookings())
	}
}

// TestFollowingAllocatesNothing: a request that is followed allocates no more than another.
func TestFollowingAllocatesNothing(t *testing.T) {
	count := func(unwanted bool) float64 {
		_, router := newService(t)
		e := &ends{router: router, unwanted: unwanted, got: make([]Ending, 0, 1000)}
		s := New(Settings{BodyBytes: 1 << 20, DefaultModel: "sim"}, Config{
			Router: router, Feedback: e, Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
		})
		return testing.AllocsPerRun(500, func() {
			x := s.Begin(Origin{Source: "edge"})
			x.OnHeaders(Head{Method: "POST", Path: "/v1/completions"}, start)
			x.OnBody([]byte(question), true, start)
			x.Recycle()
			x.OnResponse(Response{Status: 200}, false, start)
			x.OnEnd(true, start)
			router.End(x.Booking(), start)
		})
	}
	if with, without := count(false), count(true); with > without {
		t.Errorf("%.0f allocations with, %.0f without", with, without)
	}
}
