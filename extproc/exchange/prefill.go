package exchange

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/route"
	"github.com/stator-project/stator/internal/route/handoff"
)

// A request whose decision is split has two requests to engines, one after the other. This service sends the first one, to a
// prefill worker, and Envoy the second one, to the decode worker:
//
//	answer of the prefill worker           outcome       then
//	parameters of the transfer             transferred   the decode worker receives them
//	none: a connection failed              unreachable   another prefill worker
//	200 without usable parameters          unusable      another prefill worker
//	status 5xx                             failed        another prefill worker
//	any other status                       refused       the decode worker receives the client's body, and finds the same fault
//	none within route.PrefillTimeout       timed_out     the decode worker receives the client's body
//	none: the client has left              cancelled     -
//	(no prefill worker is ready and free)  no_worker     the decode worker receives the client's body
//
// A decode worker that receives the client's body computes the prompt by itself. Every prefill worker is asked at most once, and
// at most maxPrefills of them are.

// The outcomes of requests to prefill workers.
const (
	transferred = "transferred"
	unreachable = "unreachable"
	unusable    = "unusable"
	failed      = "failed"
	refused     = "refused"
	timedOut    = "timed_out"
	cancelled   = "cancelled"
	noWorker    = "no_worker"
)

var prefillOutcomes = []string{transferred, unreachable, unusable, failed, refused, timedOut, cancelled, noWorker}

// maxPrefills bounds how many prefill workers are asked for one request.
const maxPrefills = 2

// headerRequestID is the header by which the logs of both engines can be joined.
const headerRequestID = "x-request-id"

// handoffs are the endpoints whose prompts prefill workers can compute.
var handoffs = map[prompt.Endpoint]struct {
	shape handoff.Endpoint
	path  string
}{
	prompt.Chat:        {handoff.Chat, "/v1/chat/completions"},
	prompt.Completions: {handoff.Completions, "/v1/completions"},
}

// newPrefillClient returns the client for requests to prefill workers. It keeps connections, follows no redirects and uses no
// proxy: the addresses are those of the fleet.
func newPrefillClient() *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			DialContext:            (&net.Dialer{Timeout: time.Second}).DialContext,
			MaxIdleConns:           1024,
			MaxIdleConnsPerHost:    128,
			IdleConnTimeout:        30 * time.Second,
			MaxResponseHeaderBytes: 64 << 10,
			DisableCompression:     true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// prefill has a prefill worker compute the prompt of a picked request. It returns the body for the decode worker: the given one
// where no prefill worker has computed it.
func (x *Exchange) prefill(d *route.Decision, body []byte) []byte {
	to, ok := handoffs[x.target.endpoint]
	if !ok {
		return body
	}
	transfer := handoff.Transfer{Kind: fleet.TransferNixl, Endpoint: to.shape}
	ask, err := transfer.Prefill(nil, body)
	if err != nil {
		return body // the router has parsed it, so this cannot happen
	}
	ctx, cancel := x.whileWanted(x.svc.prefillTimeout)
	defer cancel()

	var tried []string
	for range maxPrefills {
		p := x.svc.router.Decide(&route.Request{
			ID: d.PrefillID(len(tried)), Endpoint: x.target.endpoint, Known: true, Body: body,
			Role: fleet.Prefill, Except: tried, IgnoreBodyHints: true,
			Session: d.Session, Source: d.Source, Done: x.origin.Done,
		}, time.Now())
		if p.Outcome != route.Picked {
			x.countPrefill(x.orCancelled(noWorker))
			return body
		}

		answer, outcome := x.send(ctx, p, to.path, ask)
		decode := body
		if outcome == transferred {
			decode, err = transfer.Decode(nil, body, answer)
			if err != nil {
				x.svc.log.Warn("a prefill worker cannot transfer KV caches", "worker", p.Worker, "error", err)
				decode, outcome = body, unusable
			}
		}
		x.endPrefill(p, outcome)
		if outcome != unreachable && outcome != unusable && outcome != failed {
			return decode
		}
		tried = append(tried, p.Worker)
	}
	return body
}

// orCancelled returns an outcome, or cancelled where the client has left.
func (x *Exchange) orCancelled(outcome string) string {
	if x.Gone() {
		return cancelled
	}
	return outcome
}

// whileWanted returns a context that ends after that time, and when the client leaves.
func (x *Exchange) whileWanted(most time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(context.Background(), most)
	go func() {
		select {
		case <-x.origin.Done:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// send sends a request to a prefill worker. The outcome is transferred for an answer that is to be read, with its body.
func (x *Exchange) send(ctx context.Context, p *route.Decision, path string, body []byte) (answer []byte, outcome string) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+p.Address+path, bytes.NewReader(body))
	if err != nil {
		return nil, unreachable
	}
	r.Header.Set("content-type", "application/json")
	r.Header.Set(headerRequestID, x.requestID())
	if p.Ranks > 1 {
		r.Header.Set(headerRank, strconv.Itoa(p.Rank))
	}

	answer, status, err := x.svc.exchangeWith(r)
	switch {
	case err != nil && x.Gone():
		return nil, cancelled
	case ctx.Err() != nil: // a connection that is not made in time has another error, which looks the same
		return nil, timedOut
	case err != nil:
		x.svc.log.Warn("a prefill worker cannot be reached", "worker", p.Worker, "error", err)
		return nil, unreachable
	case status >= http.StatusInternalServerError:
		return nil, failed
	case status != http.StatusOK:
		return nil, refused
	}
	return answer, transferred
}

// exchangeWith sends a request and reads the answer, of at most handoff.MaxAnswer bytes.
func (s *Service) exchangeWith(r *http.Request) (answer []byte, status int, err error) {
	response, err := s.prefills.Do(r)
	if err != nil {
		return nil, 0, err
	}
	defer func() { _ = response.Body.Close() }()

	answer, err = io.ReadAll(io.LimitReader(response.Body, handoff.MaxAnswer+1))
	if err != nil {
		return nil, 0, fmt.Errorf("read the answer: %w", err)
	}
	return answer, response.StatusCode, nil
}

// requestID returns the id that both engines receive: Envoy's, where Envoy has sent it, or else that of the decision.
func (x *Exchange) requestID() string {
	if x.head.RequestID != "" {
		return x.head.RequestID
	}
	return x.booking
}

// endPrefill ends the booking of a request to a prefill worker. How it ended is evidence of the worker's health.
func (x *Exchange) endPrefill(p *route.Decision, outcome string) {
	x.countPrefill(outcome)
	e := route.Ending{ID: p.ID}
	switch outcome {
	case transferred, unusable:
		e.Served = p.Address
	case refused:
		e.Served = p.Address
		e.Refused = true
	case failed:
		e.Served = p.Address
		e.Failed = true
	case unreachable, timedOut:
		e.Tried = p.Address
		e.Failed = true
	case cancelled:
		e.Left = true
	}
	x.svc.router.Ended(e, time.Now())
}

// countPrefill counts a request to a prefill worker, or the lack of one.
func (x *Exchange) countPrefill(outcome string) {
	x.svc.metrics.prefills.WithLabelValues(outcome).Inc()
}
