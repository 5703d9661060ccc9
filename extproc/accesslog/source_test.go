package accesslog

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/stator-project/stator/extproc/messages"
	"github.com/stator-project/stator/internal/envoynames"
	"github.com/stator-project/stator/internal/route"
	"github.com/stator-project/stator/internal/route/pick"
)

// pipes is a listener whose connections the test makes.
type pipes struct {
	net.Listener
	next chan net.Conn
}

func (p pipes) Accept() (net.Conn, error) { return <-p.next, nil }

// connectTo returns the server's end of a new connection.
func connectTo(t *testing.T, s *Server) net.Conn {
	t.Helper()
	p := pipes{next: make(chan net.Conn, 1)}
	here, _ := net.Pipe()
	p.next <- here
	c, err := s.Listener(p).Accept()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// streamOf returns the context of a stream of an Envoy on a connection.
func streamOf(c net.Conn, node string) context.Context {
	ctx := peer.NewContext(context.Background(), &peer.Peer{Addr: c.RemoteAddr()})
	if node == "" {
		return ctx
	}
	return metadata.NewIncomingContext(ctx, metadata.Pairs(envoynames.MetadataEnvoy, node))
}

// TestSourceIsTheNodeID: Envoys on one host have names of their own. An Envoy without one is named by its host.
func TestSourceIsTheNodeID(t *testing.T) {
	s, _ := newServer(newTable())
	c := connectTo(t, s)
	for node, want := range map[string]string{"edge-1": "edge-1", "edge-2": "edge-2", "": "pipe"} {
		if got := Source(streamOf(c, node)); got != want {
			t.Errorf("node id %q: source %q, want %q", node, got, want)
		}
	}
	if n := len(s.sources); n != 3 {
		t.Errorf("%d sources", n)
	}
}

// TestBookingsOfClosedConnectionsEnd: an Envoy whose access log goes to another router is gone when it has no connection
// here. One that still has a connection keeps its bookings.
func TestBookingsOfClosedConnectionsEnd(t *testing.T) {
	watched(t, func(s *Server, b *table, _ func(string) *stream, wait func(time.Duration)) {
		first, second, other := connectTo(t, s), connectTo(t, s), connectTo(t, s)
		for c, node := range map[net.Conn]string{first: "edge-1", second: "edge-1", other: "edge-2"} {
			_ = Source(streamOf(c, node))
		}
		b.book("1", "edge-1")
		b.book("2", "edge-2")
		_ = first.Close()
		wait(time.Minute)
		b.wantOpen(t, "one of two connections is closed", "1 2")
		_ = second.Close()
		_ = second.Close() // gRPC closes more than once
		wait(4 * time.Second)
		b.wantOpen(t, "4 s after the last is closed", "1 2")
		wait(3 * time.Second)
		b.wantOpen(t, "7 s after the last is closed", "2")
		_ = other.Close()
	})
}

// TestClosedLogOfLivingEnvoy: an Envoy that closes its log and keeps a connection lives, and its log may go to another
// router from now on. Only bookings of before end, because their entries may be lost, and other routers receive the
// time.
func TestClosedLogOfLivingEnvoy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTable()
		s, _ := newServer(b)
		var gone []string
		s.cfg.Gone = func(source string, closed time.Time) { gone = append(gone, source+" "+time.Since(closed).String()) }
		c := connectTo(t, s)
		name := Source(streamOf(c, "edge-1"))
		s.opened(name)
		b.book("before", name)
		time.Sleep(time.Second)
		s.closed(name)
		time.Sleep(time.Second)
		b.book("after", name)

		for range 20 {
			time.Sleep(time.Second)
			s.sweep(time.Now())
		}
		b.wantOpen(t, "twenty seconds later", "after")
		if len(gone) != 1 || gone[0] != "edge-1 6s" {
			t.Errorf("other routers were told %v", gone)
		}
	})
}

// TestLostRouter: a router that has gone may have held entries of this router's requests, so the bookings of that moment
// end, and later ones stay.
func TestLostRouter(t *testing.T) {
	watched(t, func(s *Server, b *table, connect func(string) *stream, wait func(time.Duration)) {
		x := connect("10.0.0.1")
		b.book("before", "10.0.0.1")
		wait(time.Second)
		s.Lost(time.Now())
		wait(time.Second)
		b.book("after", "10.0.0.1")
		wait(time.Minute)
		b.wantOpen(t, "a minute later", "after")
		close(x.in)
	})
}

// TestForeignEntriesArePassedOn: an entry belongs to the router whose name begins its id. Entries without a name, and
// those without an id, are applied here.
func TestForeignEntriesArePassedOn(t *testing.T) {
	b := newTable("me-1", "them-2", "old")
	s, _ := newServer(b)
	var foreign []string
	s.cfg.Replica = "me"
	s.cfg.Foreign = func(replica string, e *messages.Entry) { foreign = append(foreign, replica+":"+e.Booking+e.Decision) }
	for _, e := range []messages.Entry{
		entry("me-1", "me-1", "a", "a"), entry("them-2", "", "", ""), entry("", "them-3", "a", "a"), entry("old", "old", "a", "a"), {},
	} {
		s.entry("envoy", &e, time.Time{})
	}
	if got := strings.Join(foreign, " "); got != "them:them-2 them:them-3" {
		t.Errorf("passed on: %s", got)
	}
	b.wantOpen(t, "after the entries", "them-2")
	if n := testutil.ToFloat64(s.metrics.requests.WithLabelValues(AsPicked)); n != 2 {
		t.Errorf("%g requests of this router", n)
	}
}

// panicking is bookings whose ends panic.
type panicking struct{ *table }

func (panicking) Ended(route.Ending, time.Time) (pick.Booking, bool) { panic("a bug") }

// TestPanicCostsOneEntry: a panic is counted, and the next entry is applied.
func TestPanicCostsOneEntry(t *testing.T) {
	s, _ := newServer(panicking{newTable()})
	for _, e := range []messages.Entry{entry("x", "x", "a", "a"), entry("y", "y", "a", "a"), {}} {
		s.entry("envoy", &e, time.Time{})
	}
	if n := testutil.ToFloat64(s.metrics.panics); n != 2 {
		t.Errorf("%g panics", n)
	}
}

// TestFailedOutcome: errors of the server and answers that are cut off are failures. A client that leaves has none.
func TestFailedOutcome(t *testing.T) {
	good := messages.Entry{Decision: "x", Upstream: true, Attempts: 1, Picked: "a,b", Served: "a", Status: 200, FirstByte: 1}
	for name, c := range map[string]struct {
		change func(e *messages.Entry)
		want   string
		ending route.Ending
	}{
		"a good answer":         {func(*messages.Entry) {}, AsPicked, route.Ending{Served: "a"}},
		"the client's mistake":  {func(e *messages.Entry) { e.Status = 422 }, AsPicked, route.Ending{Served: "a", Refused: true}},
		"an error":              {func(e *messages.Entry) { e.Status = 500 }, Failed, route.Ending{Served: "a", Failed: true}},
		"cut off":               {func(e *messages.Entry) { e.Broken = true }, Failed, route.Ending{Served: "a", Failed: true, CutOff: true}},
		"none after a retry":    {func(e *messages.Entry) { e.Status, e.FirstByte, e.Attempts = 503, 0, 2 }, Failed, route.Ending{Failed: true, Tried: "a"}},
		"the client left":       {func(e *messages.Entry) { e.Status, e.Broken, e.Left = 0, true, true }, AsPicked, route.Ending{Served: "a"}},
		"good after a retry":    {func(e *messages.Entry) { e.Served, e.Attempts = "b", 2 }, Retried, route.Ending{Served: "b"}},
		"no worker was reached": {func(e *messages.Entry) { e.Upstream, e.Status, e.FirstByte = false, 503, 0 }, Unserved, route.Ending{Failed: true, Tried: "a"}},
	} {
		e := good
		c.change(&e)
		got := endingOf(&e)
		if outcome := outcomeOf(&e); outcome != c.want || got != c.ending {
			t.Errorf("%s: %s, %+v; want %s, %+v", name, outcome, got, c.want, c.ending)
		}
	}
}

// TestWarningAboutMissingIDs: an Envoy that does not pass the router's metadata on leaks every booking, so it is logged,
// once. Requests without a decision while there is no booking are those of a router that was away.
func TestWarningAboutMissingIDs(t *testing.T) {
	b := newTable()
	var log bytes.Buffer
	s := NewServer(Config{Bookings: b, Log: slog.New(slog.NewTextHandler(&log, nil)), Metrics: prometheus.NewRegistry()})
	unpicked := entry("", "", "", "a")
	for range 2 * manyWithoutID {
		s.entry("envoy", &unpicked, time.Time{})
	}
	if log.Len() > 0 {
		t.Errorf("without bookings: %s", &log)
	}

	for i := range manyWithoutID + 1 {
		b.book(fmt.Sprint(i), "")
	}
	known := entry("0", "0", "a", "a")
	s.entry("envoy", &known, time.Time{})
	for range 3 * manyWithoutID {
		s.entry("envoy", &unpicked, time.Time{})
	}
	if n := strings.Count(log.String(), "receiving_namespaces"); n != 1 {
		t.Errorf("%d warnings: %s", n, &log)
	}
}

// TestWarningAboutNoAccessLog: an Envoy without an access log leaks every booking, so it is logged, once. Many bookings
// are no sign of it while requests end.
func TestWarningAboutNoAccessLog(t *testing.T) {
	b := newTable()
	var log bytes.Buffer
	s := NewServer(Config{Bookings: b, Log: slog.New(slog.NewTextHandler(&log, nil)), Metrics: prometheus.NewRegistry()})
	for i := range 2 * manyWithoutID {
		b.book(fmt.Sprint(i), "")
	}

	now := time.Now()
	pass := func(minutes int, ends bool) {
		for range minutes * 60 {
			now = now.Add(time.Second)
			if ends {
				s.entry("envoy", &messages.Entry{Booking: "unknown"}, now)
			}
			s.sweep(now)
		}
	}
	pass(10, true)
	pass(4, false)
	pass(1, true)
	if log.Len() > 0 {
		t.Errorf("while requests end: %s", &log)
	}
	pass(20, false)
	if n := strings.Count(log.String(), "sends no access log"); n != 1 {
		t.Errorf("%d warnings: %s", n, &log)
	}
}
