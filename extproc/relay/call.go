package relay

import (
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/stator-project/stator/extproc/exchange"
	"github.com/stator-project/stator/extproc/migrate"
	"github.com/stator-project/stator/extproc/prefill"
	"github.com/stator-project/stator/extproc/speculate"
	"github.com/stator-project/stator/internal/envoynames"
)

// call is one request of Envoy.
type call struct {
	h    *Handler
	w    http.ResponseWriter
	r    *http.Request
	body *held

	relayed *exchange.Relayed
	turn    *speculate.Turn // reads the answer; nil for most requests
	stall   *stall          // of the last worker; nil if its stream may not be continued
}

// headerNotRetried is Envoy's header of a failure that it does not retry, whatever the status is. It would send the client's body to any
// worker: also one of SGLang that decodes, which refuses a body without a room, and one more after a body that has broken two workers.
const headerNotRetried = "x-envoy-ratelimited"

// answer writes the answer of a request that the relay has decided about.
func (c *call) answer(a *exchange.Answer) {
	if a.Status >= http.StatusInternalServerError {
		c.w.Header().Set(headerNotRetried, "true")
	}
	write(c.w, c.r, a)
}

// attempt makes the next attempt, and reports whether the client has its answer, or has left. Both legs end with it.
func (c *call) attempt() (done bool) {
	ctx, cancel := context.WithCancel(c.r.Context())
	defer cancel()
	attempt, answer := c.relayed.Next(ctx, time.Now())
	if answer != nil {
		c.h.count(noAttempt)
		c.answer(answer)
		return true
	}
	return c.sendAttempt(ctx, cancel, attempt)
}

// sendAttempt sends an attempt, and reports whether the client has its answer, or has left. Cancel stops both legs.
func (c *call) sendAttempt(ctx context.Context, cancel context.CancelFunc, a *exchange.Attempt) (done bool) {
	response, events, prefillOK, err := c.send(ctx, cancel, a)
	if response != nil {
		defer func() { _ = response.Body.Close() }()
	}
	if events != nil {
		defer events.Free()
	}

	h := c.h
	switch {
	case c.r.Context().Err() != nil:
		h.count(clientLeft)
		a.Left(time.Now())
		return true
	case !prefillOK:
		h.count(prefillFailed)
		a.PrefillFailed(err, time.Now())
		return c.isOver(a)
	case err != nil && a.Last():
		cancel()
		h.count(workerFailed)
		a.Failed(err, time.Now())
		c.answer(exchange.NoAnswer())
		return true
	case err != nil, a.MayRetry(response.StatusCode):
		cancel()
		h.count(workerFailed)
		a.Failed(err, time.Now())
		return false
	}
	c.turn = a.Begun(response.StatusCode, events != nil)
	defer c.turn.End()
	c.body.free()
	if events != nil {
		c.stream(response, events, a)
		return true
	}
	c.forward(response, a)
	return true
}

// isOver answers the client, and returns true, if no attempt follows one whose prefill worker has failed: the last one, and one of a
// request with a fault of the client.
func (c *call) isOver(a *exchange.Attempt) bool {
	if refusal := a.Source.Refusal(); refusal != nil {
		c.answer(&exchange.Answer{Status: refusal.Status, Body: refusal.Body})
		return true
	}
	if a.Last() {
		c.answer(exchange.NoAnswer())
	}
	return a.Last()
}

// The states of an attempt before its answer.
const (
	waiting int32 = iota
	begun         // the answer has begun, or will not
	stopped       // the prefill worker has failed
)

// send sends the request of an attempt, and returns the response when its headers are there, with its events if it is a stream of them. It
// waits for the first event of a stream that may be continued, or whose prompt is fetched, unless bodies use more than half of their
// budget: until then the body is kept. prefillOK is false if the leg to the prefill worker has failed before, or the prompt is lost; cancel
// has then stopped the request.
func (c *call) send(ctx context.Context, cancel context.CancelFunc, a *exchange.Attempt) (
	response *http.Response, events *migrate.Events, prefillOK bool, err error,
) {
	request, err := newRequest(ctx, c.r, a, c.r.URL.RequestURI())
	if err != nil {
		return nil, nil, true, err
	}

	var state atomic.Int32
	if source := a.Source; source != nil {
		waits, end := context.WithCancel(ctx)
		defer end()
		go func() {
			if fails(waits, source) && state.CompareAndSwap(waiting, stopped) {
				cancel()
			}
		}()
	}
	response, err = c.roundTrip(ctx, cancel, request, a)
	if err == nil && isStream(response) {
		events = migrate.NewEvents(response.Body, c.h.requests.StreamBudget())
		if (a.Stream != nil || a.Source != nil) && c.h.requests.RelayBudget().IsHalfFree() {
			err = events.Await()
		}
	}
	return response, events, state.CompareAndSwap(waiting, begun), err
}

// fails waits until a leg to a prefill worker has failed, or the prompt that it has computed is lost, and returns true. It returns false
// when ctx ends.
func fails(ctx context.Context, source *prefill.Leg) bool {
	select {
	case <-source.Done():
	case <-ctx.Done():
		return false
	}
	return source.Outcome() != prefill.Transferred || source.IsLost(ctx)
}

// roundTrip sends the request of an attempt, and returns the response when its headers are there. If another worker may continue the
// stream, cancel is called when this one stalls.
func (c *call) roundTrip(ctx context.Context, cancel func(), request *http.Request, a *exchange.Attempt) (*http.Response, error) {
	c.stall = nil
	if a.Stream == nil || !a.MayContinue() {
		return c.h.engines.RoundTrip(request)
	}
	s := &stall{}
	c.stall = s
	s.off.Store(a.Last())
	s.wait()
	go s.watch(ctx, a, cancel)
	response, err := c.h.engines.RoundTrip(request)
	switch {
	case err == nil:
		s.off.Store(false)
		response.Body = watched{response.Body, s}
	case s.cut.Load():
		err = exchange.ErrStalled
	}
	return response, err
}

// newRequest returns the request of an attempt to a path, with the client's headers.
func newRequest(ctx context.Context, r *http.Request, a *exchange.Attempt, path string) (*http.Request, error) {
	request, err := a.Body.NewRequest(ctx, "http://"+a.Address+path)
	if err != nil {
		return nil, err
	}
	request.Header = r.Header.Clone()
	request.Host = r.Host
	maps.DeleteFunc(request.Header, func(name string, _ []string) bool { return isOurs(strings.ToLower(name)) })
	for _, name := range hopByHop {
		request.Header.Del(name)
	}
	request.Header.Del("Content-Length")
	for _, h := range a.Set {
		request.Header.Set(h.Key, h.Value)
	}
	return request, nil
}

// isOurs reports whether a header, in lower case, is between Envoys and routers, so that no engine gets it from a client.
func isOurs(name string) bool {
	return strings.HasPrefix(name, envoynames.HintPrefix) || strings.HasPrefix(name, envoynames.DestinationPrefix) ||
		name == envoynames.HeaderDataRank
}

// hopByHop are the headers of one connection.
var hopByHop = []string{"Connection", "Keep-Alive", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade"}

// forward copies the response to the client, each piece as it comes.
func (c *call) forward(response *http.Response, a *exchange.Attempt) {
	c.begin(response)
	err := copyFlushed(c.w, response.Body, c.turn)
	left := c.r.Context().Err() != nil
	a.Answered(response.StatusCode, err != nil && !left, time.Now())
	switch {
	case left:
		c.h.count(clientLeft)
	case err != nil:
		c.h.count(brokeOff)
		panic(http.ErrAbortHandler) // the client must see that something is missing
	default:
		c.h.count(answered)
	}
}

// begin sends the status and the headers of the response.
func (c *call) begin(response *http.Response) {
	header := c.w.Header()
	maps.Copy(header, response.Header)
	for _, name := range slices.Concat(hopByHop, notFromEngines) {
		header.Del(name)
	}
	if response.StatusCode >= http.StatusInternalServerError {
		header.Set(headerNotRetried, "true")
	}
	c.w.WriteHeader(response.StatusCode)
}

// notFromEngines are headers of engines' answers that clients do not get.
var notFromEngines = []string{"Set-Cookie", envoynames.HeaderDestination}

// copyFlushed copies a response's body, and flushes each piece. The turn, which may be nil, gets it first.
func copyFlushed(w http.ResponseWriter, body io.Reader, turn *speculate.Turn) error {
	control := http.NewResponseController(w)
	piece := make([]byte, 16<<10)
	for {
		n, err := body.Read(piece)
		if n > 0 {
			turn.Write(piece[:n])
			if _, err := w.Write(piece[:n]); err != nil {
				return err
			}
			if err := control.Flush(); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
