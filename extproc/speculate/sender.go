package speculate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/extproc/prefill"
	"github.com/stator-project/stator/internal/enginetls"
	"github.com/stator-project/stator/internal/envoynames"
	"github.com/stator-project/stator/internal/metric"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/prompt/openai"
	"github.com/stator-project/stator/internal/route"
	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/route/request"
	"github.com/stator-project/stator/internal/route/sessionid"
)

const (
	// workers is the number of turns that are prepared and sent at a time, and maxWaiting bounds those that wait for it.
	workers    = 16
	maxWaiting = 256
	// sendWithin bounds the time of one speculative prefill. A next turn that comes later finds what is computed until then.
	sendWithin = time.Minute
	// connectWithin bounds the time for a connection: engines are on the same network.
	connectWithin = time.Second
	// lookEvery is how often bookings of other routers on the rank are looked for.
	lookEvery = 50 * time.Millisecond
	// maxRead bounds how much of an answer with one token is read, in bytes.
	maxRead = 64 << 10
)

// The results of turns whose next one is wanted in a cache.
const (
	done      = "done"      // the prefix is computed
	cancelled = "cancelled" // a request of a client has come for the rank, or the session's next one
	busy      = "busy"      // no rank was idle
	cached    = "cached"    // a rank has the prefix in its cache
	dropped   = "dropped"   // the session's next request has come first, or too many turns wait
	unread    = "unread"    // the prompt of the next turn cannot be prepared
	noRoom    = "no_room"   // the answer is too long, or the budget has no room
	failed    = "failed"    // the worker has not computed it
)

// Config is read by New and not changed later.
type Config struct {
	Router  *route.Router
	Log     *slog.Logger
	Metrics prometheus.Registerer
	// Engines makes the connections to engines; nil makes them without TLS.
	Engines *enginetls.Client
}

// Sender has the prefixes of next turns computed. Create it with [New].
type Sender struct {
	router    *route.Router
	log       *slog.Logger
	transport *http.Transport
	results   *prometheus.CounterVec
	tokens    *prometheus.CounterVec

	waiting chan *Turn
	live    atomic.Int64 // turns that wait or are sent

	mu       sync.Mutex
	sessions map[string]*Turn // guarded by mu; the last turn of each session that waits or is sent
	sent     map[place]*prefilling
}

// place is a rank of a worker.
type place struct {
	worker string
	rank   int
}

// prefilling is a speculative prefill that is sent.
type prefilling struct {
	turn *Turn
	stop context.CancelFunc
}

// New returns a sender, which sends nothing before Run.
func New(cfg Config) *Sender {
	part := metric.For(cfg.Metrics, "speculative")
	return &Sender{
		router: cfg.Router, log: cfg.Log, transport: prefill.NewTransport(cfg.Engines, connectWithin),
		results: part.Counters("prefills_total", "Answers after which the prefix of the next turn was wanted in a cache, by result: done "+
			"is computed, and nothing is sent for busy, cached, dropped, unread and no_room.", "model", "result"),
		tokens:  part.Counters("prefill_tokens_total", "Tokens of next turns that speculative prefills have computed.", "model"),
		waiting: make(chan *Turn, maxWaiting), sessions: map[string]*Turn{}, sent: map[place]*prefilling{},
	}
}

func (s *Sender) count(model, result string) { s.results.WithLabelValues(model, result).Inc() }

// Run sends speculative prefills until ctx ends. Those that are sent are stopped then.
func (s *Sender) Run(ctx context.Context) {
	defer s.transport.CloseIdleConnections()
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for {
				select {
				case t := <-s.waiting:
					s.count(t.request.Model, s.serve(ctx, t))
					s.forget(t)
				case <-ctx.Done():
					return
				}
			}
		})
	}
	all.Wait()
}

// enqueue has a turn wait. It returns false if too many do.
func (s *Sender) enqueue(t *Turn) bool {
	s.live.Add(1) // first: Decided looks at it without the lock
	s.mu.Lock()
	if session := t.request.Session; session != "" {
		s.sessions[session] = t
	}
	s.mu.Unlock()
	select {
	case s.waiting <- t:
		return true
	default:
		s.count(t.request.Model, dropped)
		s.leave(t)
		return false
	}
}

// forget frees a turn that is over.
func (s *Sender) forget(t *Turn) {
	s.leave(t)
	t.free()
}

// leave takes a turn out of the tables.
func (s *Sender) leave(t *Turn) {
	s.mu.Lock()
	if session := t.request.Session; s.sessions[session] == t {
		delete(s.sessions, session)
	}
	s.mu.Unlock()
	s.live.Add(-1)
}

// Decided makes way for a decision about a request of a client: the speculative prefill at its rank is stopped, and its session's one.
func (s *Sender) Decided(d *decision.Decision) {
	if s.live.Load() == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var next *Turn
	if d.Session != "" {
		next = s.sessions[d.Session]
	}
	if next != nil {
		next.dropped = true
	}
	for at, p := range s.sent { // at most workers
		if p.turn == next || d.Outcome == decision.Picked && at == (place{d.Worker, d.Rank}) {
			p.stop()
		}
	}
}

// serve has the next turn of a conversation computed, and returns the result.
func (s *Sender) serve(ctx context.Context, t *Turn) string {
	ask, err := s.ask(t)
	if err != nil {
		s.log.Debug("no speculative prefill", "model", t.request.Model, "err", err)
		return unread
	}
	if len(ask.Parsed.Prompts[0].Tokens) == 0 {
		return cached // less than a block
	}

	ctx, stop := context.WithTimeout(ctx, sendWithin)
	defer stop()
	s.mu.Lock()
	isDropped := t.dropped // from here on Decided finds it by its rank
	s.mu.Unlock()
	if isDropped {
		return dropped
	}
	d, made := s.router.Speculate(ask, time.Now())
	switch made {
	case route.Cached:
		return cached
	case route.Busy:
		return busy
	case route.Impossible:
		return unread
	case route.Booked:
	}
	if !s.begin(t, d, stop) {
		s.router.Ended(route.Ending{ID: d.ID, Left: true, Speculative: true}, time.Now())
		return busy
	}
	defer s.end(d)
	return s.compute(ctx, stop, t, d, ask)
}

// ask returns the request of the next turn's prefix. The conversation is a client's, so that a panic costs no more than it.
func (s *Sender) ask(t *Turn) (ask *request.Request, err error) {
	defer func() {
		if p := recover(); p != nil {
			ask, err = nil, fmt.Errorf("prepare the prompt of the next turn: %v", p)
		}
	}()
	parsed, err := t.parse()
	if err != nil {
		return nil, err
	}

	preparer, blockSize := s.router.Preparer(parsed.Model)
	if preparer == nil {
		return nil, errUnread
	}
	tokens, err := nextPrefix(preparer, parsed, &t.answer, blockSize, time.Now())
	if err != nil {
		return nil, err
	}

	// The strings outlive the body.
	next := &prompt.Request{
		Endpoint: prompt.Completions, Model: strings.Clone(parsed.Model), MaxTokens: 1, N: 1,
		Prompts: []openai.Prompt{{Tokens: tokens}}, CacheSalt: strings.Clone(parsed.CacheSalt),
	}
	return &request.Request{
		Endpoint: prompt.Completions, Known: true, Parsed: next, IgnoreBodyHints: true,
		Session: t.request.Session, Source: t.request.Source,
	}, nil
}

// begin is the second step of three, see the package comment. It registers a speculative prefill that is booked, so that Decided stops it.
// It returns false if another one is at the rank, or a request of a client was booked there meanwhile.
func (s *Sender) begin(t *Turn, d *decision.Decision, stop context.CancelFunc) bool {
	at := place{d.Worker, d.Rank}
	s.mu.Lock()
	if s.sent[at] != nil {
		s.mu.Unlock()
		return false
	}
	s.sent[at] = &prefilling{t, stop}
	s.mu.Unlock()
	if !s.router.IsDisturbed(d.ID) {
		return true
	}
	s.end(d)
	return false
}

// end takes a speculative prefill out of the table.
func (s *Sender) end(d *decision.Decision) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sent, place{d.Worker, d.Rank})
}

// compute sends a speculative prefill, ends its booking, and returns the result.
func (s *Sender) compute(ctx context.Context, stop context.CancelFunc, t *Turn, d *decision.Decision, ask *request.Request) string {
	go func() {
		tick := time.NewTicker(lookEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				if s.router.IsDisturbed(d.ID) {
					stop()
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	status, err := s.post(ctx, t, d, ask.Parsed)

	// How it ended is evidence of the worker's health, unless it was stopped. A time that is over is none: others may have gone first.
	e := route.Ending{ID: d.ID, Speculative: true}
	result := failed
	switch {
	case err == nil && status == http.StatusOK:
		result = done
		e.Served = d.Address
		s.tokens.WithLabelValues(t.request.Model).Add(float64(max(0, d.PromptTokens-d.Cached)))
	case errors.Is(ctx.Err(), context.Canceled):
		result = cancelled
		e.Left = true
	case err != nil && ctx.Err() == nil:
		e.Tried, e.Failed = d.Address, true
	case err != nil:
		e.Left = true
	default:
		e.Served = d.Address
		e.Failed = status >= http.StatusInternalServerError
		e.Refused = !e.Failed
	}
	s.router.Ended(e, time.Now())
	if result == failed {
		s.log.Debug("a speculative prefill has failed", "worker", d.Worker, "status", status, "err", err)
	}
	return result
}

// post sends the completion, and reads its answer.
func (s *Sender) post(ctx context.Context, t *Turn, d *decision.Decision, next *prompt.Request) (status int, err error) {
	r, err := prefill.NewBody(appendBody(nil, next)).NewRequest(ctx, "http://"+d.Address+"/v1/completions")
	if err != nil {
		return 0, err
	}
	r.Header = http.Header{"Content-Type": {"application/json"}}
	r.Header.Set(prefill.HeaderRequestID, d.ID)
	if t.request.Authorization != "" {
		r.Header.Set("Authorization", t.request.Authorization)
	}
	if session := sessionid.HeaderValue(t.request.Session); session != "" {
		r.Header.Set(envoynames.HeaderSession, session)
	}
	if d.Ranks > 1 {
		r.Header.Set(prefill.HeaderRank, strconv.Itoa(d.Rank))
	}

	response, err := s.transport.RoundTrip(r)
	if err != nil {
		return 0, err
	}
	defer func() { _ = response.Body.Close() }()
	_, err = io.Copy(io.Discard, io.LimitReader(response.Body, maxRead))
	return response.StatusCode, err
}

// appendBody appends the body of the completion.
func appendBody(b []byte, next *prompt.Request) []byte {
	b = openai.AppendString(append(b, `{"model":`...), next.Model)
	b = append(b, `,"max_tokens":1,"temperature":0,"prompt":[`...)
	for i, id := range next.Prompts[0].Tokens {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendUint(b, uint64(id), 10)
	}
	b = append(b, ']')
	if next.CacheSalt != "" {
		b = openai.AppendString(append(b, `,"cache_salt":`...), next.CacheSalt)
	}
	return append(b, '}')
}
