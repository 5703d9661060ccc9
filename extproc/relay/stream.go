package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"time"

	"github.com/stator-project/stator/extproc/exchange"
	"github.com/stator-project/stator/extproc/migrate"
	"github.com/stator-project/stator/extproc/prefill"
	"github.com/stator-project/stator/internal/metric"
)

// The outcomes of streams that break off.
const (
	continued   = "continued"    // another worker has begun to continue it
	completed   = "completed"    // the client had all tokens, and the relay has added the end
	notPromised = "not_promised" // it is not continued, or has lost its promise
	limitMet    = "limit"        // it was continued as often as it may be
	noWorker    = "no_worker"    // no worker is left that may continue it
	refused     = "refused"      // a worker has answered the continuation with an error
	diverged    = "diverged"     // the continuation had other tokens
)

// addStreams adds the metrics of streams.
func (h *Handler) addStreams(part metric.Part) {
	part.GaugeFunc("stream_bytes", "Bytes of the token ids and the events that streams at the relay hold.",
		func() float64 { return float64(h.requests.StreamBudget().Used()) })
	h.streams = part.Counters("streams_total",
		"Streams of models with migration by promise: exact, sampled, or why the stream is not continued if its worker fails.", "promise")
	for _, p := range migrate.Promises() {
		h.streams.WithLabelValues(string(p))
	}
	h.losses = part.Counters("lost_promises_total", "Streams that have lost their promise, by reason.", "reason")
	for _, l := range migrate.Losses() {
		h.losses.WithLabelValues(string(l))
	}
	h.migrations = part.Counters("migrations_total",
		"Streams that have broken off, each time by outcome: continued and completed go on, and all others end with an error event.",
		"outcome")
	for _, o := range []string{continued, completed, notPromised, limitMet, noWorker, refused, diverged} {
		h.migrations.WithLabelValues(o)
	}
}

// isStream reports whether a response is a stream of events that the relay can read.
func isStream(response *http.Response) bool {
	kind, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type"))
	return response.StatusCode == http.StatusOK && kind == "text/event-stream" && response.Header.Get("Content-Encoding") == ""
}

// stream is the answer of one call that is a stream of events.
type stream struct {
	*call
	flush func() error
	state *migrate.Stream // nil if it is not continued
	out   []byte
}

// stream sends the events of the response to the client, and those of other workers that continue it. The relay reads no more than the
// client has taken, but for one buffer.
func (c *call) stream(response *http.Response, events *migrate.Events, a *exchange.Attempt) {
	response.Header.Del("Content-Length") // more events may follow
	c.begin(response)
	s := &stream{call: c, flush: http.NewResponseController(c.w).Flush}
	if a.Stream != nil {
		s.state = migrate.NewStream(a.Stream, c.h.requests.StreamBudget())
		defer s.state.Free()
	}

	err := s.copy(events)
	events.Free()
	_ = response.Body.Close() // a worker that has sent an error may still compute
	for !s.ends(a, err) {
		next := s.resume(a)
		if next == nil {
			return
		}
		a = next.attempt
		err = s.copy(next.events)
		next.close()
	}
}

// errClient means that the client takes no more events.
var errClient = errors.New("the client has left")

// copy sends events until they end. The error is nil if the client has the whole stream.
func (s *stream) copy(events *migrate.Events) error {
	for {
		s.out = s.out[:0]
		err := s.take(events)
		if len(s.out) > 0 {
			s.turn.Write(s.out)
			if _, err := s.w.Write(s.out); err != nil {
				return errClient
			}
			if s.flush() != nil {
				return errClient
			}
		}
		if err != nil {
			return err
		}

		err = events.Fill()
		switch {
		case s.r.Context().Err() != nil:
			return errClient
		case err == nil:
		case s.state != nil && s.state.Ended():
			return nil
		case s.mayResume():
			return err // also if the worker has ended the response without the end of the stream
		case errors.Is(err, io.EOF):
			s.turn.Write(events.Rest())
			if _, err := s.w.Write(events.Rest()); err != nil {
				return errClient
			}
			return nil
		default:
			return err
		}
	}
}

// take takes the events that were read.
func (s *stream) take(events *migrate.Events) (err error) {
	for {
		event, whole := events.Next()
		switch {
		case event == nil:
			return nil
		case s.state == nil:
			s.out = append(s.out, event...)
			continue
		}

		kept := s.state.Lost()
		s.out, err = s.state.Pass(s.out, event, whole)
		if why := s.state.Lost(); why != kept {
			s.h.losses.WithLabelValues(string(why)).Inc()
			if s.stall != nil {
				s.stall.off.Store(true)
			}
		}
		if err != nil {
			return err
		}
	}
}

// mayResume reports whether the promise of the stream holds.
func (s *stream) mayResume() bool { return s.state != nil && s.state.Lost() == "" }

// ends ends the attempt, whose events have ended with an error or nil. It reports whether the stream has ended with it, too.
func (s *stream) ends(a *exchange.Attempt, err error) bool {
	now := time.Now()
	switch {
	case errors.Is(err, errClient):
		a.Answered(http.StatusOK, false, now)
		s.h.count(clientLeft)
		return true
	case err == nil:
		a.Answered(http.StatusOK, false, now)
		s.h.count(answered)
		return true
	}

	a.Answered(http.StatusOK, true, now)
	s.h.count(brokeOff)
	switch {
	case errors.Is(err, migrate.ErrDiverged):
		s.breakOff(diverged)
	case s.state != nil && s.state.Finished():
		s.h.migrations.WithLabelValues(completed).Inc()
		s.send(s.state.Close(nil))
	case !s.mayResume():
		s.breakOff(notPromised)
	default:
		s.h.log.Debug("a stream has broken off", "worker", a.Address, "err", err)
		return false
	}
	return true
}

// breakOff ends the stream with an event that has the error.
func (s *stream) breakOff(outcome string) {
	s.h.migrations.WithLabelValues(outcome).Inc()
	s.send(s.relayed.BrokenOff())
}

// send sends the last event. A client that has left does not get it.
func (s *stream) send(event []byte) {
	s.turn.Write(event)
	_, _ = s.w.Write(event)
	_ = s.flush()
}

// continuation is the response of a worker that continues a stream.
type continuation struct {
	attempt  *exchange.Attempt
	response *http.Response
	events   *migrate.Events
	cancel   context.CancelFunc
}

func (c *continuation) close() {
	c.events.Free()
	_ = c.response.Body.Close()
	c.cancel()
}

// completions is the path of continuations.
const completions = "/v1/completions"

// resume has another worker continue the stream of an attempt. It is nil if none does; then the stream has ended with an error.
func (s *stream) resume(a *exchange.Attempt) *continuation {
	for s.r.Context().Err() == nil {
		progress := s.state.News() > 0 || s.stall != nil && s.stall.cut.Load() // a worker that stalls was not ended by the text
		body := s.state.Body()
		if body == nil { // the first event had no ids, and no tokens
			s.breakOff(notPromised)
			return nil
		}
		if !a.MayContinue() {
			s.breakOff(limitMet)
			return nil
		}
		next := a.Continue(body, progress, time.Now())
		if next == nil {
			s.breakOff(noWorker)
			return nil
		}

		c, err := s.begun(next)
		switch {
		case err == nil:
			s.h.migrations.WithLabelValues(continued).Inc()
			return c
		case s.r.Context().Err() != nil:
			next.Left(time.Now())
			continue
		}
		s.h.log.Debug("a worker has not continued a stream", "worker", next.Address, "err", err)
		var refusal refusalError
		if errors.As(err, &refusal) {
			next.Answered(int(refusal), false, time.Now())
			s.breakOff(refused)
			return nil
		}
		s.h.count(workerFailed)
		next.Failed(err, time.Now())
		a = next
	}
	s.h.count(clientLeft)
	return nil
}

// refusalError is a status that is not the worker's fault.
type refusalError int

func (r refusalError) Error() string { return fmt.Sprintf("the answer has status %d", int(r)) }

// begun sends the request of a continuation, and returns it when its events begin.
func (s *stream) begun(a *exchange.Attempt) (*continuation, error) {
	ctx, cancel := context.WithCancel(s.r.Context())
	c := &continuation{attempt: a, cancel: cancel}
	request, err := newRequest(ctx, s.r, a, completions)
	if err == nil {
		c.response, err = s.roundTrip(ctx, cancel, request, a) //nolint:bodyclose // continuation.close closes it
	}
	if err != nil {
		cancel()
		return nil, err
	}
	if isStream(c.response) {
		c.events = migrate.NewEvents(c.response.Body, s.h.requests.StreamBudget())
		return c, nil
	}

	_ = c.response.Body.Close()
	cancel()
	status := c.response.StatusCode
	if prefill.IsFault(status) {
		return nil, refusalError(status)
	}
	return nil, fmt.Errorf("the answer has status %d, and is no stream of events that the relay can read", status)
}
