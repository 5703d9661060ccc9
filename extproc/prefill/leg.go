package prefill

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/stator-project/stator/extproc/spans"
	"github.com/stator-project/stator/internal/envoynames"
	"github.com/stator-project/stator/internal/route"
	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/route/handoff"
	"github.com/stator-project/stator/internal/route/sessionid"
)

// Leg is the request to one prefill worker.
type Leg struct {
	sender                         *Sender
	path, requestID, authorization string
	traceparent                    string
	worker                         *decision.Decision
	decodeID, decodeWorker         string // of the decision about the decode worker, which may be used again before the leg ends
	transfer                       handoff.Transfer
	body                           *Body

	tokens int           // that the worker computes until its answer
	wait   time.Duration // for the answer
	began  time.Time

	done    chan struct{} // closed at its end; nil if Compute waits for it
	outcome Outcome
	err     error // why there is no usable answer; nil if the outcome explains it
	refusal *Refusal
	broke   bool // the connection has broken after the worker had received the request
	cached  int
}

// Done is closed when the request has ended.
func (l *Leg) Done() <-chan struct{} { return l.done }

// Outcome returns how the request has ended. Call it after Done is closed.
func (l *Leg) Outcome() Outcome { return l.outcome }

// Broke reports whether the connection has broken after the worker had received the request. Call it after Done is closed.
func (l *Leg) Broke() bool { return l.broke }

// Forget frees the body of the request when it is sent.
func (l *Leg) Forget() { l.body.Forget() }

// Worker returns the prefill worker's name.
func (l *Leg) Worker() string { return l.worker.Worker }

// jsonType is the value of a header. It is not changed.
var jsonType = []string{"application/json"}

// send sends the request, and sets outcome and cached. It returns the answer if the outcome is Transferred.
func (l *Leg) send(ctx context.Context) (answer []byte) {
	s, p := l.sender, l.worker
	l.began = time.Now()
	ctx, cancel := context.WithTimeout(ctx, l.wait)
	defer cancel()
	r, err := l.body.NewRequest(ctx, "http://"+p.Address+l.path)
	if err != nil {
		l.outcome = Unreachable
		return nil
	}
	r.Header = http.Header{"Content-Type": jsonType, http.CanonicalHeaderKey(HeaderRequestID): {l.requestID}}
	if l.authorization != "" {
		r.Header["Authorization"] = []string{l.authorization}
	}
	if l.traceparent != "" {
		r.Header.Set(spans.Header, l.traceparent)
	}
	if session := sessionid.HeaderValue(p.Session); session != "" {
		r.Header.Set(envoynames.HeaderSession, session)
	}
	if p.Ranks > 1 {
		r.Header.Set(HeaderRank, strconv.Itoa(p.Rank))
	}

	answer, status, err := s.exchange(r)
	l.outcome = outcomeOf(ctx, status, err)
	l.broke = l.outcome == Unreachable && HasReceived(err)
	l.err = err
	switch {
	case l.outcome == Transferred:
		l.observe(answer)
	case l.outcome == Refused && IsFault(status):
		l.refusal = &Refusal{Status: status, Body: answer}
	}
	return answer
}

// Refusal is the answer of a prefill worker that finds a fault of the client in the request.
type Refusal struct {
	Status int
	Body   []byte
}

// IsFault reports whether a status means that a request is wrong, so that each worker refuses it.
func IsFault(status int) bool {
	return status == http.StatusBadRequest || status == http.StatusRequestEntityTooLarge || status == http.StatusUnprocessableEntity
}

// Refusal returns the answer of a worker that finds a fault of the client; nil for none. Call it after Done is closed.
func (l *Leg) Refusal() *Refusal { return l.refusal }

// observe counts the tokens that the prefill worker had in its cache.
func (l *Leg) observe(answer []byte) {
	n, ok := handoff.CachedTokens(answer)
	if !ok {
		return
	}
	l.cached = n
	l.sender.cached.Add(float64(n))
}

// outcomeOf returns the outcome of a request. An answer counts even if the context has ended meanwhile. A connection that is not made in
// time has another error than the context's, which looks the same.
func outcomeOf(ctx context.Context, status int, err error) Outcome {
	switch {
	case err != nil && ctx.Err() == context.Canceled:
		return Cancelled
	case err != nil && ctx.Err() != nil:
		return TimedOut
	case err != nil:
		return Unreachable
	case status >= http.StatusInternalServerError:
		return Failed
	case status != http.StatusOK:
		return Refused
	}
	return Transferred
}

// HasReceived reports whether an engine may have received a request that has ended with this error: there was a connection.
func HasReceived(err error) bool {
	var op *net.OpError
	return err != nil && (!errors.As(err, &op) || op.Op != "dial")
}

// exchange sends a request and reads the answer, of at most handoff.MaxAnswer bytes and one more.
func (s *Sender) exchange(r *http.Request) (answer []byte, status int, err error) {
	response, err := s.transport.RoundTrip(r)
	if err != nil {
		return nil, 0, err
	}
	defer func() { _ = response.Body.Close() }()

	var all bytes.Buffer
	if n := response.ContentLength; n >= 0 && n <= handoff.MaxAnswer {
		all.Grow(int(n) + bytes.MinRead) // that much is free before each read, also before the one that finds the end
	}
	if _, err := all.ReadFrom(io.LimitReader(response.Body, handoff.MaxAnswer+1)); err != nil {
		return nil, 0, fmt.Errorf("read the answer: %w", err)
	}
	return all.Bytes(), response.StatusCode, nil
}

// endBooking counts the outcome and ends the booking. How the request ended is evidence of the worker's health.
func (l *Leg) endBooking() {
	l.sender.Count(l.outcome)
	l.judge(time.Now())
	p := l.worker
	e := route.Ending{ID: p.ID}
	switch l.outcome {
	case Transferred:
		l.sender.router.PrefillDone(p.ID, time.Now())
		e.Served = p.Address
	case Unusable, Finished:
		e.Served = p.Address
	case Refused:
		e.Served = p.Address
		e.Refused = true
	case Failed:
		e.Served = p.Address
		e.Failed = true
	case Unreachable, TimedOut:
		e.Tried = p.Address
		e.Failed = true
	case Cancelled, NoWorker:
		e.Left = true
	}
	l.sender.router.Ended(e, time.Now())
}

// judge records the outcome as evidence about the worker.
func (l *Leg) judge(now time.Time) {
	if l.outcome == Transferred {
		l.sender.pairs.transferred(l.decodeID, pair{l.worker.Worker, l.decodeWorker})
	}
	switch l.outcome {
	case Transferred, Finished:
		l.sender.standings.served(l.worker.Worker, l.worker.Pool, l.tokens, now.Sub(l.began))
	case Unreachable, Unusable, Failed, TimedOut:
		l.sender.standings.failed(l.worker.Worker, l.outcome, l.err, now)
	case Refused, Cancelled, NoWorker, Named:
	}
}
