package prefill

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/internal/enginetls"
	"github.com/stator-project/stator/internal/metric"
	"github.com/stator-project/stator/internal/route"
	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/route/handoff"
	"github.com/stator-project/stator/internal/route/request"
)

// Outcome names the end of a request to a prefill worker.
type Outcome string

// The outcomes.
const (
	Transferred Outcome = "transferred"
	Unreachable Outcome = "unreachable"
	Unusable    Outcome = "unusable"
	Failed      Outcome = "failed"
	Refused     Outcome = "refused"
	Finished    Outcome = "finished"
	TimedOut    Outcome = "timed_out"
	Cancelled   Outcome = "cancelled"
	NoWorker    Outcome = "no_worker"
	Named       Outcome = "named"
)

// Outcomes are all outcomes.
func Outcomes() []Outcome {
	return []Outcome{Transferred, Unreachable, Unusable, Failed, Refused, Finished, TimedOut, Cancelled, NoWorker, Named}
}

// MayRetry reports whether another prefill worker may compute the prompt.
func (o Outcome) MayRetry() bool { return o == Unreachable || o == Unusable || o == Failed }

// MaxWorkers bounds how many prefill workers are asked for one request.
const MaxWorkers = 2

// The headers of requests to engines.
const (
	// HeaderRequestID joins the logs of both engines.
	HeaderRequestID = "x-request-id"
	// HeaderRank is the header by which vLLM selects a data-parallel rank.
	HeaderRank = "x-data-parallel-rank"
)

// Config is read by New and not changed later.
type Config struct {
	Router  *route.Router
	Log     *slog.Logger
	Metrics prometheus.Registerer
	// Engines makes the connections to engines; nil makes them without TLS.
	Engines *enginetls.Client
	// Timeout bounds the answers of prefill workers, even if prompts should take longer; 0 means route.PrefillTimeout.
	Timeout time.Duration
}

// Sender sends requests to prefill workers. Create it with [New].
type Sender struct {
	router    *route.Router
	standings *standings
	pairs     *pairs
	timeout   time.Duration
	transport *http.Transport
	outcomes  *prometheus.CounterVec
	cached    prometheus.Counter
}

// New returns a sender. Close it when no request is sent any more.
func New(cfg Config) *Sender {
	part := metric.For(cfg.Metrics, "extproc")
	s := &Sender{
		router: cfg.Router, standings: newStandings(cfg.Log), timeout: cfg.Timeout, transport: NewTransport(cfg.Engines, time.Second),
		outcomes: part.Counters("prefills_total",
			"Requests to prefill workers by outcome: transferred means that the decode worker can fetch the prompt's KV cache. With "+
				"refused, finished, timed_out and no_worker, and after two of the others, the decode worker computes the prompt. Named "+
				"means that the sidecar of the decode worker sends the request.",
			"outcome"),
		cached: part.Counter("prefill_cached_tokens_total",
			"Prompt tokens that prefill workers found in their caches, by the usage in their answers."),
	}
	s.pairs = newPairs(cfg.Log, part.Counter("transfer_empty_answers_total",
		"Answers with 200 and without a token after the transfer of a prompt's KV cache: the transfer has failed without an error."))
	if s.timeout == 0 {
		s.timeout = route.PrefillTimeout
	}
	for _, o := range Outcomes() {
		s.outcomes.WithLabelValues(string(o))
	}
	return s
}

// NewTransport returns a transport for requests to engines, which make a connection within that time. It keeps connections, follows no
// redirects and uses no proxy: the addresses come from the fleet.
func NewTransport(engines *enginetls.Client, connect time.Duration) *http.Transport {
	return &http.Transport{
		DialContext:            engines.Dial(connect),
		MaxIdleConns:           1024,
		MaxIdleConnsPerHost:    128,
		IdleConnTimeout:        4 * time.Second, // vLLM and SGLang close connections that were idle for five seconds
		MaxResponseHeaderBytes: 64 << 10,
		WriteBufferSize:        64 << 10, // most requests are sent by one system call
		DisableCompression:     true,
	}
}

// Close closes the connections that are idle.
func (s *Sender) Close() { s.transport.CloseIdleConnections() }

// Answered records that the answer to a request of a decode worker has ended regularly: with tokens, or without any. After a transfer an
// answer without tokens is a failure of the two workers together: see pairs. id is the decision's.
func (s *Sender) Answered(id string, isEmpty bool, now time.Time) { s.pairs.answered(id, isEmpty, now) }

// Count counts an outcome without a request.
func (s *Sender) Count(o Outcome) { s.outcomes.WithLabelValues(string(o)).Inc() }

// Request is a request whose decode worker is picked.
type Request struct {
	// Decision is the decision about the decode worker. It is Split.
	Decision *decision.Decision
	// Ask is the request by which prefill workers are chosen, without its ID, Role and Except, and without hints.
	Ask request.Request
	// Endpoint is the shape of the body, and Path the path of the URL.
	Endpoint handoff.Endpoint
	Path     string
	// Body is the decode worker's, but for the members of the transfer.
	Body []byte
	// RequestID is the header of that name for both engines.
	RequestID string
	// Authorization is the client's header; empty for none. Engines that are started with a key need it.
	Authorization string
	// Traceparent is the trace context for the worker, as a header; empty for none.
	Traceparent string
	// Source is set by Compute if the body that it returns has the members of a transfer: the leg to the worker that keeps the prompt.
	Source *Leg
	// Tried are the prefill workers that have failed. Broke are the workers whose connection has broken after they had received
	// the request, perhaps because its body has ended them.
	Tried, Broke []string
}

// MaxBroken is the number of workers that a body may break. It goes to no further one.
const MaxBroken = 2

// IsPoison reports whether the body has broken as many workers as it may.
func (r *Request) IsPoison() bool { return len(r.Broke) >= MaxBroken }

// ended is the channel of a leg that Compute has waited for.
var ended = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// Compute has a prefill worker compute the prompt, and returns the body for the decode worker: the given one if none has computed it.
// Cached is the number of tokens of the prompt that the prefill worker had in its cache; -1 if it is not known.
func (s *Sender) Compute(ctx context.Context, r *Request) (body []byte, cached int) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()

	for len(r.Tried) < MaxWorkers && !r.IsPoison() {
		leg, outcome := s.pick(r)
		if leg == nil {
			s.Count(orCancelled(ctx, outcome))
			break
		}
		answer := leg.send(ctx)
		if leg.outcome == Transferred {
			decode, err := leg.transfer.Decode(nil, r.Body, answer)
			switch {
			case err == nil:
				s.router.Handed(r.Decision, leg.Worker(), time.Now())
				leg.endBooking()
				leg.done = ended
				leg.Forget()
				r.Source = leg
				return decode, leg.cached
			case errors.Is(err, handoff.ErrFinished):
				leg.outcome = Finished
			default:
				leg.outcome, leg.err = Unusable, err
			}
		}
		leg.endBooking()
		if leg.broke {
			r.Broke = append(r.Broke, leg.worker.Worker)
		}
		if !leg.outcome.MayRetry() {
			break
		}
		r.Tried = append(r.Tried, leg.worker.Worker)
	}
	return r.Body, -1
}

// orCancelled returns an outcome, or Cancelled if the client has left.
func orCancelled(ctx context.Context, o Outcome) Outcome {
	if ctx.Err() == context.Canceled {
		return Cancelled
	}
	return o
}

// Begin has a prefill worker compute the prompt while the decode worker waits for it, and returns the body for the decode worker. The leg
// is nil if there is no prefill worker; the body is the given one then.
func (s *Sender) Begin(ctx context.Context, r *Request) (leg *Leg, body []byte) {
	if len(r.Tried) >= MaxWorkers {
		return nil, r.Body
	}
	leg, outcome := s.pick(r)
	if leg == nil {
		s.Count(orCancelled(ctx, outcome))
		return nil, r.Body
	}
	body, err := leg.transfer.Decode(nil, r.Body, nil)
	if err != nil { // an address that the fleet has accepted, so this cannot happen
		leg.outcome = Unusable
		leg.endBooking()
		return nil, r.Body
	}

	s.router.Handed(r.Decision, leg.Worker(), time.Now())
	leg.done = make(chan struct{})
	go func() {
		defer close(leg.done)
		leg.send(ctx)
		leg.endBooking()
	}()
	return leg, body
}

// Name chooses a prefill worker for the sidecar of the decode worker, which sends it the prompt, and returns its address; empty for none.
//
// Nothing is known of that request. Its prompt counts as load of the worker until events report its blocks, or until it was expected to be
// computed, as those of all bookings do: see [route.Router.SettlePrefills]. The rest of the booking ends after namedFor.
func (s *Sender) Name(ctx context.Context, r *Request) (address string) {
	p := s.choose(r, time.Now())
	if p == nil {
		s.Count(orCancelled(ctx, NoWorker))
		return ""
	}
	s.router.Handed(r.Decision, p.Worker, time.Now())
	s.Count(Named)
	tokens := tokensBefore(p) + tokensOf(p, len(r.Ask.Body))
	id := p.ID
	time.AfterFunc(namedFor+waitFactor*estimate(tokens), func() { s.router.Ended(route.Ending{ID: id, Left: true}, time.Now()) })
	return p.Address
}

// namedFor is the time after which the booking of a prefill worker ends that was named to a sidecar, besides the time of its prompt.
const namedFor = waitFloor
