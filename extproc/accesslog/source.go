package accesslog

import (
	"context"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/stator-project/stator/internal/backoff"
	"github.com/stator-project/stator/internal/envoynames"
)

// source is one Envoy. Its bookings end as follows. Ends wait for lateEntries, in which entries may arrive that
// were on their way:
//
//	log streams   connections    bookings made before   end
//	-----------   ------------   --------------------   ----------------------------------------------
//	open          any            -                      by their entries
//	all closed    one is open    the last close         the Envoy lives; its entries may have been lost
//	open again    any            the last close         the same, or it is a new process with the same id
//	all closed    all closed     now                    the Envoy is gone; the source is dropped
type source struct {
	streams, conns int // open ones
	// closed is when the last stream was closed most recently; zero before the first time.
	closed time.Time
	// due is when the bookings from before closed end; zero if none have to.
	due time.Time
	// alone is since when there is neither a stream nor a connection; zero while there is one.
	alone time.Time

	log      logState           // whether entries with ids arrive
	followed int                // open streams whose ends count; at most maxFollowed
	full     bool               // there were more, which was logged
	last     endSource          // the source of the last end
	ends     [endSources]uint64 // bookings that have ended, by source
}

// settle records whether the source has a stream or a connection.
func (src *source) settle(now time.Time) {
	if src.streams > 0 || src.conns > 0 {
		src.alone = time.Time{}
	} else if src.alone.IsZero() {
		src.alone = now
	}
}

// sourceOf returns the source of that name. s.mu is held.
func (s *Server) sourceOf(name string) *source {
	if s.sources[name] == nil {
		s.sources[name] = &source{}
	}
	return s.sources[name]
}

func (s *Server) opened(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.metrics.streams.Inc()
	src := s.sourceOf(name)
	src.streams++
	src.settle(time.Now())
}

func (s *Server) closed(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.metrics.streams.Dec()

	src := s.sourceOf(name)
	src.streams--
	now := time.Now()
	if src.streams == 0 {
		src.lose(now)
	}
	src.settle(now)
}

// lose records that entries may have been lost.
func (src *source) lose(now time.Time) {
	src.closed = now
	if src.due.IsZero() {
		src.due = now.Add(lateEntries)
	}
}

// Lost records that a router has gone which may have held entries of this router's requests: the bookings that
// exist now end when the entries of other routers have had time to arrive.
func (s *Server) Lost(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, src := range s.sources {
		src.lose(now)
	}
}

// Run ends the bookings of Envoys that closed their log, until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	backoff.Every(ctx, time.Second, s.sweep)
	return nil
}

func (s *Server) sweep(now time.Time) {
	if bookings := s.cfg.Bookings.Bookings(); s.silent.observe(bookings, now) {
		s.cfg.Log.Warn("requests are decided and none ends, so bookings stay: Envoy sends no access log here; compare its access_log "+
			"with that of `stator envoy bootstrap` and docs/operations.md", "bookings", bookings, "for", silence)
	}
	s.settleEnds(now)
	for _, o := range s.overdue(now) {
		s.End(o.source, o.before)
		if s.cfg.Gone != nil && !o.closed.IsZero() {
			s.cfg.Gone(o.source, o.closed)
		}
	}
}

// End ends the bookings of an Envoy from before a time, because no entries of theirs will come.
func (s *Server) End(source string, before time.Time) {
	n := s.cfg.Bookings.EndBefore(source, before)
	if n == 0 {
		return
	}
	s.metrics.abandoned.Add(float64(n))
	s.cfg.Log.Warn("access log closed; earlier bookings ended", "source", source, "bookings", n)
}

// overdueSource is an Envoy whose bookings from before a time have to end. closed is when it closed its log; zero
// if it never had one.
type overdueSource struct {
	source         string
	before, closed time.Time
}

// overdue returns the Envoys whose bookings have to end, and drops the gone ones.
//
// Bookings also end for an Envoy that has connected again. It may be a new process, which does not
// report the requests of the old one. If it is the old process, the requests that it still serves are
// counted from the engine's reports only. The alternative is worse: bookings that never end.
func (s *Server) overdue(now time.Time) (out []overdueSource) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, src := range s.sources {
		switch {
		case !src.alone.IsZero() && now.Sub(src.alone) > lateEntries:
			out = append(out, overdueSource{name, now, src.closed})
			delete(s.sources, name)
		case !src.due.IsZero() && now.After(src.due):
			out = append(out, overdueSource{name, src.closed, src.closed})
			src.due = time.Time{}
			if src.streams == 0 {
				src.log = logUnknown // the Envoy may be a new process, with another configuration
			}
		}
	}
	return out
}

// Source returns the name of the Envoy at the other end of a stream: the node id that the stream carries, which
// package xds configures. An Envoy with another configuration is named by its host. The port is left out, because
// decisions and access log may arrive by different connections.
func Source(ctx context.Context) string {
	p, ok := peer.FromContext(ctx)
	name := ""
	if ids := metadata.ValueFromIncomingContext(ctx, envoynames.MetadataEnvoy); len(ids) == 1 {
		name = ids[0]
	}
	if name == "" && ok {
		name = hostOf(p.Addr)
	}

	if ok {
		if c, watched := p.Addr.(*remote); watched {
			c.carries(name)
		}
	}
	return name
}

// hostOf returns the host of an address.
func hostOf(a net.Addr) string {
	host, _, err := net.SplitHostPort(a.String())
	if err != nil {
		return a.Network() // a Unix socket: the Envoy on this host
	}
	return host
}

// Listener returns ln with connections whose ends s sees. A router learns in this way that an Envoy is gone, also
// one whose log goes to another router.
func (s *Server) Listener(ln net.Listener) net.Listener { return &listener{ln, s} }

type listener struct {
	net.Listener
	server *Server
}

// Accept returns the next connection.
func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &connection{Conn: c, remote: &remote{Addr: c.RemoteAddr(), server: l.server, sources: map[string]bool{}}}, nil
}

// connection is a connection of an Envoy, or of a proxy before several Envoys.
type connection struct {
	net.Conn
	remote *remote
}

// RemoteAddr returns the other end. gRPC passes it on to the handlers of streams.
func (c *connection) RemoteAddr() net.Addr { return c.remote }

// Close closes the connection.
func (c *connection) Close() error {
	err := c.Conn.Close()
	c.remote.close()
	return err
}

// maxSources bounds the Envoys behind one connection.
const maxSources = 1024

// remote is the other end of a connection: an address that also knows which Envoys use it.
type remote struct {
	net.Addr
	server *Server

	mu      sync.Mutex
	sources map[string]bool // guarded by mu; the Envoys whose streams it has carried; nil after close
}

// carries records that a stream of an Envoy uses the connection.
func (r *remote) carries(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.sources == nil || r.sources[name] || len(r.sources) == maxSources {
		return
	}
	r.sources[name] = true
	r.server.connected(name, 1)
}

func (r *remote) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name := range r.sources {
		r.server.connected(name, -1)
	}
	r.sources = nil
}

// connected changes the number of connections of an Envoy.
func (s *Server) connected(name string, by int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	src := s.sourceOf(name)
	src.conns += by
	src.settle(time.Now())
}
