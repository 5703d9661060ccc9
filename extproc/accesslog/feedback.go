package accesslog

import (
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/stator-project/stator/extproc/exchange"
	"github.com/stator-project/stator/extproc/messages"
	"github.com/stator-project/stator/internal/route"
)

const (
	// maxFollowed bounds the open streams of one Envoy whose ends count. Envoy allows 1,024 requests at one time to a
	// cluster, unless its circuit breakers are raised: two routers must stay below that together.
	maxFollowed = 400
	// maxAwaited bounds the ends that wait for an entry or for an engine's report. Further ones are applied at once, and
	// ends that no stream reports are not counted.
	maxAwaited = 1 << 14
	// maxEnvoys bounds the Envoys whose requests are followed.
	maxEnvoys = 1024
)

// logState is whether entries with ids of decisions arrive from an Envoy.
type logState uint8

const (
	logUnknown logState = iota // none has arrived so far
	hasLog
	noLog // a request has ended without one
)

// endSource is the source of the end of a booking.
type endSource uint8

const (
	byNothing endSource = iota // no booking has ended so far
	byAccessLog
	byResponse
	byStreamEnd
	byEngines
	endSources
)

// String returns the name in metrics, in the log and on the page of Envoys.
func (e endSource) String() string {
	return [...]string{"unknown", "access_log", "response", "stream_end", "engines"}[e]
}

// end is the end of a followed request that waits: for lateEntries, in which an entry of the access log may arrive, or if
// it is unseen for the engine's report.
type end struct {
	source string
	ending exchange.Ending
	due    time.Time
}

// Wanted implements exchange.Feedback. The log of an Envoy is trusted more than its streams, which then cost nothing.
func (s *Server) Wanted(source string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	src := s.sources[source]
	if src == nil {
		return len(s.sources) < maxEnvoys
	}
	return src.log != hasLog
}

// Follow implements exchange.Feedback.
func (s *Server) Follow(source, booking string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	src := s.sourceOf(source)
	src.settle(time.Now())
	if src.followed < maxFollowed {
		src.followed++
		return true
	}

	s.await(booking, &end{source: source, ending: exchange.Ending{Booking: booking, Unseen: true}})
	if !src.full {
		src.full = true
		s.cfg.Log.Warn("so many requests of an Envoy without an access log are served at one time that the ends of further ones are "+
			"not followed: add the access log that `stator envoy snippet` prints", "envoy", source, "followed", maxFollowed)
	}
	return false
}

// await keeps an end. It returns false if there is no room. s.mu is held.
func (s *Server) await(booking string, e *end) bool {
	if len(s.awaited) >= maxAwaited {
		return false
	}
	s.awaited[booking] = e
	return true
}

// Ended implements exchange.Feedback: it receives the end of a followed request.
func (s *Server) Ended(source string, e exchange.Ending, now time.Time) {
	if s.endsNow(source, &e, now) {
		s.applyEnd(source, &e, now)
	}
}

// endsNow reports whether an end is applied at once, and otherwise keeps it.
func (s *Server) endsNow(source string, e *exchange.Ending, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	src := s.sources[source]
	if src == nil {
		return true // it is gone
	}
	src.followed = max(0, src.followed-1)
	switch {
	case e.Unseen && src.log == hasLog:
		return false // its entry will come
	case e.Unseen:
		s.await(e.Booking, &end{source: source, ending: *e})
		return false
	case src.log == noLog:
		return true
	}
	return !s.await(e.Booking, &end{source, *e, now.Add(lateEntries)})
}

// settleEnds applies the ends for which no entry has come, and counts the ends that engines' reports have
// made.
func (s *Server) settleEnds(now time.Time) {
	for _, e := range s.overdueEnds(now) {
		if e.ending.Unseen {
			s.counted(e.source, byEngines)
		} else {
			s.applyEnd(e.source, &e.ending, now)
		}
	}
}

// overdueEnds removes the ends whose time has come, and returns them. Ends of an Envoy without a connection wait until it is
// gone, or back: its streams have ended with it, which shows nothing about its log.
func (s *Server) overdueEnds(now time.Time) (out []*end) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for booking, e := range s.awaited {
		if src := s.sources[e.source]; src != nil && !src.alone.IsZero() {
			continue
		}
		if e.ending.Unseen && s.cfg.Bookings.IsBooked(booking) || !e.ending.Unseen && now.Before(e.due) {
			continue
		}
		out = append(out, e)
		delete(s.awaited, booking)
	}
	return out
}

// logged records an entry of a booking; see apply. ended means that it has ended the booking.
func (s *Server) logged(source, booking string, hasIDs, ended bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.awaited[booking]; e != nil && source == "" {
		source = e.source
	}
	delete(s.awaited, booking)
	src := s.sources[source]
	if src == nil {
		return
	}

	if hasIDs {
		src.log = hasLog
	}
	if ended {
		src.last = byAccessLog
		src.ends[byAccessLog]++
	}
}

// applyEnd ends the booking of a followed request and counts its outcome, unless another source has ended it before.
func (s *Server) applyEnd(source string, e *exchange.Ending, now time.Time) {
	k, ok := s.cfg.Bookings.Ended(routeEnding(e), now)
	if !ok {
		return
	}
	s.silent.entries.Add(1)
	entry := seen(e)
	outcome := outcomeOf(&entry)
	if e.Served == "" && outcome != Failed {
		outcome = Unconfirmed
	}
	s.metrics.count(outcome)
	if s.cfg.Ended != nil {
		s.cfg.Ended(&entry, outcome, &k, now)
	}

	by := byStreamEnd
	if e.Status > 0 {
		by = byResponse
	}
	s.counted(source, by)
}

// counted counts the end of a booking by that source. The first one that is not in an access log is logged: it means that
// the Envoy has none.
func (s *Server) counted(source string, by endSource) {
	s.mu.Lock()
	defer s.mu.Unlock()
	src := s.sources[source]
	if src == nil {
		return // it is gone
	}
	src.last = by
	src.ends[by]++
	if src.log != logUnknown {
		return
	}
	src.log = noLog
	s.cfg.Log.Warn("an Envoy sends no access log here, so the ends of its requests are taken from another source: add the access log "+
		"that `stator envoy snippet` prints", "envoy", source, "source", by)
}

// seen returns the entry that the access log would have for a followed request. A worker of the list that is not the
// first one was tried after a failure.
func seen(e *exchange.Ending) messages.Entry {
	list := strings.Split(e.Picked, ",")
	attempts := uint32(1)
	if slices.Contains(list[1:], e.Served) {
		attempts = 2
	}
	return messages.Entry{
		Booking: e.Booking, Decision: e.Booking, Picked: e.Picked, Served: e.Served, Upstream: true, Attempts: attempts,
		FirstByte: e.FirstByte, LastByte: e.LastByte, FirstToken: e.FirstToken, ResponseBytes: e.ResponseBytes, Status: e.Status,
	}
}

// routeEnding returns how a followed request ended, for its booking. If it is not known who served, a status of a
// gateway means that no worker did, and other errors count for no worker.
func routeEnding(e *exchange.Ending) route.Ending {
	r := route.Ending{ID: e.Booking, Served: e.Served}
	switch {
	case e.Status == http.StatusBadGateway, e.Status == http.StatusServiceUnavailable, e.Status == http.StatusGatewayTimeout:
		r.Failed = true
	case e.Status >= http.StatusInternalServerError:
		r.Failed = e.Served != ""
	case e.Status >= http.StatusBadRequest:
		r.Refused = true
	}
	return r
}
