package accesslog

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"

	"github.com/stator-project/stator/extproc/messages"
	"github.com/stator-project/stator/internal/route"
	"github.com/stator-project/stator/internal/route/pick"
)

// table is a table of bookings by id, with their Envoy and time.
type table struct {
	mu   sync.Mutex
	open map[string]booking // guarded by mu
}

type booking struct {
	source string
	at     time.Time
}

func newTable(ids ...string) *table {
	b := &table{open: map[string]booking{}}
	for _, id := range ids {
		b.book(id, "")
	}
	return b
}

func (b *table) book(id, source string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.open[id] = booking{source, time.Now()}
}

func (b *table) IDFor(source, requestID string) string { return source + "/" + requestID }

func (b *table) Ended(e route.Ending, _ time.Time) (pick.Booking, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, ok := b.open[e.ID]
	delete(b.open, e.ID)
	return pick.Booking{}, ok
}

func (b *table) EndBefore(source string, t time.Time) (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for id, k := range b.open {
		if k.source == source && k.at.Before(t) {
			delete(b.open, id)
			n++
		}
	}
	return n
}

func (b *table) IsBooked(id string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, ok := b.open[id]
	return ok
}

func (b *table) Bookings() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.open)
}

func (b *table) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Join(slices.Sorted(maps.Keys(b.open)), " ")
}

func newServer(b Bookings) (*Server, *prometheus.Registry) {
	reg := prometheus.NewRegistry()
	return NewServer(Config{Bookings: b, Log: slog.New(slog.DiscardHandler), Metrics: reg}), reg
}

// TestOutcomeOfEntries covers each outcome.
func TestOutcomeOfEntries(t *testing.T) {
	for _, c := range []struct {
		name              string
		decided, upstream bool
		attempts          uint32
		picked, served    string
		want              string
	}{
		{"the first of the list", true, true, 1, "a,b,c", "a", AsPicked},
		{"the only one", true, true, 1, "a", "a", AsPicked},
		{"the first one at the second attempt", true, true, 2, "a,b", "a", AsPicked},
		{"the second after a failure", true, true, 2, "a,b", "b", Retried},
		{"another after all of the list failed", true, true, 3, "a,b", "c", Retried},
		{"another although nothing failed", true, true, 1, "a,b", "b", Misdirected},
		{"a name with the same beginning", true, true, 1, "10.0.0.1:80,x", "10.0.0.1:8", Misdirected},
		{"a worker that Envoy does not name", true, true, 1, "a,b", "", Misdirected},
		{"none: all were down", true, false, 1, "a,b", "", Unserved},
		{"none, after attempts", true, false, 3, "a,b", "", Unserved},
		{"a worker without a decision", false, true, 1, "", "a", Unpicked},
		{"the gateway", false, false, 0, "", "", Answered},
	} {
		e := messages.Entry{Upstream: c.upstream, Attempts: c.attempts, Picked: c.picked, Served: c.served}
		if c.decided {
			e.Decision = "x"
		}
		if got := outcomeOf(&e); got != c.want {
			t.Errorf("served by %s: %s, want %s", c.name, got, c.want)
		}
	}
}

func entry(booking, decision, picked, served string) messages.Entry {
	e := messages.Entry{Booking: booking, Decision: decision, Picked: picked, Served: served, Attempts: 1}
	if served != "" {
		e.Upstream, e.FirstByte = true, 20*time.Millisecond
	}
	return e
}

func message(entries ...messages.Entry) *messages.Log { return &messages.Log{Entries: entries} }

// TestEntriesEndBookings: each entry ends the booking of its request and no other, whatever its outcome.
func TestEntriesEndBookings(t *testing.T) {
	b := newTable("served", "retried", "cancelled", "refused", "open")
	s, reg := newServer(b)
	entries := []messages.Entry{
		entry("served", "served", "a,b", "a"),
		entry("retried", "retried", "a,b", "b"),
		entry("cancelled", "cancelled", "a,b", ""), // the client left before a worker was reached
		entry("refused", "", "", ""),               // between the id and the pick: a bad body, a client that left
		entry("served", "served", "a,b", "a"),      // twice
		entry("", "none", "a", "a"),                // picked without a body, hence not booked
		entry("", "", "", "a"),                     // while we were away
		{},                                         // all that may be missing
	}
	entries[1].Attempts = 2
	for _, e := range entries {
		s.entry("envoy", &e, time.Time{})
	}
	if b.String() != "open" {
		t.Errorf("left: %s", b)
	}
	err := testutil.GatherAndCompare(reg, strings.NewReader(`
# HELP stator_accesslog_requests_total Finished requests by outcome: as_picked, retried, failed, misdirected, unpicked, unserved, answered by the gateway, or unconfirmed: picked, by an Envoy without an access log, which does not report who served.
# TYPE stator_accesslog_requests_total counter
stator_accesslog_requests_total{outcome="answered"} 2
stator_accesslog_requests_total{outcome="as_picked"} 3
stator_accesslog_requests_total{outcome="failed"} 0
stator_accesslog_requests_total{outcome="misdirected"} 0
stator_accesslog_requests_total{outcome="retried"} 1
stator_accesslog_requests_total{outcome="unconfirmed"} 0
stator_accesslog_requests_total{outcome="unpicked"} 1
stator_accesslog_requests_total{outcome="unserved"} 1
`), "stator_accesslog_requests_total")
	if err != nil {
		t.Error(err)
	}
}

// TestEntriesWithoutIDs: where Envoy did not learn the id of a booking, the id of a request whose client left leads to it.
func TestEntriesWithoutIDs(t *testing.T) {
	b := newTable("envoy/left", "envoy/stays", "other/left", "open")
	s, _ := newServer(b)
	s.entry("envoy", &messages.Entry{RequestID: "left", Left: true}, time.Time{})
	s.entry("envoy", &messages.Entry{RequestID: "stays"}, time.Time{}) // answered
	s.entry("envoy", &messages.Entry{RequestID: "none", Left: true}, time.Time{})
	if b.String() != "envoy/stays open other/left" {
		t.Errorf("left: %s", b)
	}
}

// TestMetricsAreWellNamed lints every metric of the package.
func TestMetricsAreWellNamed(t *testing.T) {
	_, reg := newServer(newTable())
	problems, err := testutil.GatherAndLint(reg)
	if err != nil || len(problems) > 0 {
		t.Error(problems, err)
	}
}

// stream is a stream whose messages the test makes. Closing it ends the stream.
type stream struct {
	grpc.ServerStream
	host string
	in   chan *messages.Log
}

func (s *stream) RecvMsg(into any) error {
	m, ok := <-s.in
	if !ok {
		return io.EOF
	}
	*into.(*messages.Log) = *m
	return nil
}

func (s *stream) Context() context.Context {
	return peer.NewContext(context.Background(), &peer.Peer{Addr: &net.TCPAddr{IP: net.ParseIP(s.host), Port: 4711}})
}

// watched runs test in fake time, with a running server and no bookings. connect opens a stream, and wait lets
// time pass.
func watched(t *testing.T, test func(s *Server, b *table, connect func(host string) *stream, wait func(time.Duration))) {
	synctest.Test(t, func(t *testing.T) {
		b := newTable()
		s, _ := newServer(b)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- s.Run(ctx) }()
		test(s, b, func(host string) *stream {
			x := &stream{host: host, in: make(chan *messages.Log)}
			go func() { _ = s.StreamAccessLogs(x) }()
			synctest.Wait()
			return x
		}, func(d time.Duration) {
			time.Sleep(d) // in the bubble this takes no time
			synctest.Wait()
		})
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func (b *table) wantOpen(t *testing.T, when, want string) {
	t.Helper()
	if got := b.String(); got != want {
		t.Errorf("%s: open bookings are %q, want %q", when, got, want)
	}
}

// TestBookingsOfClosedLogEnd: the bookings of an Envoy end five seconds after it has closed its log, because no
// entry will end them. Other Envoys' bookings stay.
func TestBookingsOfClosedLogEnd(t *testing.T) {
	watched(t, func(_ *Server, b *table, connect func(string) *stream, wait func(time.Duration)) {
		threads := []*stream{connect("10.0.0.1"), connect("10.0.0.1")}
		other := connect("10.0.0.2")
		b.book("gone", "10.0.0.1")
		b.book("other", "10.0.0.2")
		close(threads[0].in)
		wait(time.Minute)
		b.wantOpen(t, "one of two threads closed its stream", "gone other")
		close(threads[1].in)
		wait(4 * time.Second)
		b.wantOpen(t, "after 4 s", "gone other")
		wait(3 * time.Second)
		b.wantOpen(t, "after 7 s", "other")
		close(other.in)
	})
}

// TestReconnectedEnvoyEndsOldBookings: an Envoy that reconnects within five seconds may be another process,
// which reports nothing of the first one's requests. Only the bookings of before end.
func TestReconnectedEnvoyEndsOldBookings(t *testing.T) {
	watched(t, func(_ *Server, b *table, connect func(string) *stream, wait func(time.Duration)) {
		first := connect("10.0.0.1")
		b.book("carried by the first", "10.0.0.1")
		wait(time.Second)
		close(first.in)
		wait(time.Second)
		b.book("carried by the second", "10.0.0.1")
		second := connect("10.0.0.1")
		wait(3 * time.Second)
		b.wantOpen(t, "4 s after the end of the first", "carried by the first carried by the second")
		wait(time.Hour)
		b.wantOpen(t, "an hour later", "carried by the second")
		close(second.in)
	})
}

// TestFlappingEnvoyEndsOldBookings: repeated reconnections do not delay the end of old bookings.
func TestFlappingEnvoyEndsOldBookings(t *testing.T) {
	watched(t, func(_ *Server, b *table, connect func(string) *stream, wait func(time.Duration)) {
		b.book("0", "10.0.0.1")
		wait(time.Millisecond)
		for range 3 {
			x := connect("10.0.0.1")
			wait(time.Second)
			close(x.in)
			wait(time.Second)
		}
		last := connect("10.0.0.1")
		b.book("1", "10.0.0.1")
		wait(time.Second)
		b.wantOpen(t, "7 s after the first of many ends", "1")
		close(last.in)
		wait(10 * time.Second)
		b.wantOpen(t, "after the last end", "")
	})
}

// TestStreamMayEndAtAnyTime: the entries of a message are handled at once, and a stream may end after any
// message.
func TestStreamMayEndAtAnyTime(t *testing.T) {
	watched(t, func(s *Server, b *table, connect func(string) *stream, wait func(time.Duration)) {
		for i := range 4 {
			b.book(fmt.Sprint(i), "10.0.0.1")
		}
		x := connect("10.0.0.1")
		x.in <- message(entry("0", "0", "a", "a"), entry("1", "1", "a", "a"))
		x.in <- message()
		x.in <- message(entry("2", "2", "a", "a"))
		close(x.in)
		wait(time.Second)
		b.wantOpen(t, "three of four were logged", "3")
		if n := testutil.ToFloat64(s.metrics.streams); n != 0 {
			t.Errorf("%g streams are open", n)
		}
	})
}

// TestSourceIsTheHost: connections of one Envoy have one source.
func TestSourceIsTheHost(t *testing.T) {
	for want, addr := range map[string]net.Addr{
		"10.0.0.1": &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 1},
		"fe80::1":  &net.TCPAddr{IP: net.ParseIP("fe80::1"), Port: 1},
		"unix":     &net.UnixAddr{Net: "unix"},
	} {
		if got := Source(peer.NewContext(t.Context(), &peer.Peer{Addr: addr})); got != want {
			t.Errorf("%v is %q, want %q", addr, got, want)
		}
	}
	if got := Source(t.Context()); got != "" {
		t.Errorf("a stream without a peer has source %q", got)
	}
}
