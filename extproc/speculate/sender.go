package speculate

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/extproc/prefill"
	"github.com/stator-project/stator/internal/enginetls"
	"github.com/stator-project/stator/internal/metric"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/prompt/openai"
	"github.com/stator-project/stator/internal/route"
	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/route/request"
)

const (
	// workers is the number of turns that are prepared and sent at a time, and maxWaiting bounds the turns that wait for it. A turn that
	// waits is worth less with each second, because its client may be back, so that the line is short.
	workers    = 16
	maxWaiting = 256
	// sendWithin bounds the time of one speculative prefill. A next turn that comes later finds the blocks that are computed until then. It
	// is much longer than most prompts take on an idle worker, so that it ends the ones at a worker that hangs.
	sendWithin = time.Minute
	// connectWithin bounds the time for a connection: engines are on the same network.
	connectWithin = time.Second
	// lookEvery is how often bookings of other routers on the rank are looked for. An engine ends its pass before it stops, which takes
	// tens of milliseconds, so that a shorter time would gain little.
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
	router *route.Router
	log    *slog.Logger
	// transport is apart from the relay's, so that connections that are closed to stop a prefill carry nothing else.
	transport *http.Transport
	results   *prometheus.CounterVec
	tokens    *prometheus.CounterVec

	waiting chan *Turn
	live    atomic.Int64 // turns that wait or are sent

	mu sync.Mutex
	// sessions has the last turn of each session that waits or is sent. A session with two requests at a time has two turns; the later one
	// is kept, because its conversation is more likely to go on.
	sessions map[string]*Turn // guarded by mu
	// sent has at most one prefill for a rank: a second one would make the first slower, and both would be stopped together.
	sent map[place]*prefilling // guarded by mu
}

// place is a rank of a worker.
type place struct {
	worker string
	rank   int
}

// prefilling is a speculative prefill that is sent. It has its turn, so that the session's next request finds it at any rank.
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
	// A goroutine for each prefill that may be sent, because most of its time is spent on waiting for the engine.
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
	default: // the goroutine is the client's, and must not wait
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
	// A refused request has no rank, and stops only its session's prefill. One that waits in the queue is decided later, and its prompt may
	// as well be computed until then.
	for at, p := range s.sent { // at most workers
		if p.turn == next || d.Outcome == decision.Picked && at == (place{d.Worker, d.Rank}) {
			p.stop()
		}
	}
}

// serve has the next turn of a conversation computed, and returns the result. Nothing is tried again: the next turn computes the rest,
// as it would without this package.
func (s *Sender) serve(ctx context.Context, t *Turn) string {
	if s.isDropped(t) {
		return dropped // without the work of its prompt; begin looks again
	}
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
	d, made := s.router.Speculate(ask, time.Now())
	switch made {
	case route.SpeculationCached:
		return cached
	case route.SpeculationBusy:
		return busy
	case route.SpeculationImpossible:
		return unread
	case route.SpeculationBooked:
	}
	if result := s.begin(t, d, stop); result != "" {
		s.router.Ended(route.Ending{ID: d.ID, Left: true, Speculative: true}, time.Now())
		return result
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

	// Token ids and not texts, because the engine would tokenize a text of a part of the prompt otherwise. The salt and the model's name,
	// which may be an adapter's, are in the hashes of blocks. The strings outlive the body.
	next := &prompt.Request{
		Endpoint: prompt.Completions, Model: strings.Clone(parsed.Model), MaxTokens: 1, N: 1,
		Prompts: []openai.Prompt{{Tokens: tokens}}, CacheSalt: strings.Clone(parsed.CacheSalt),
	}
	return &request.Request{
		Endpoint: t.request.Endpoint, Known: true, Parsed: next, IgnoreBodyHints: true,
		Session: t.request.Session, Source: t.request.Source,
	}, nil
}

// isDropped reports whether the session's next request has come.
func (s *Sender) isDropped(t *Turn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return t.dropped
}

// begin is the second step of three, see the package comment. It registers a speculative prefill that is booked, so that Decided stops it,
// and returns an empty string. Otherwise it returns the result: the session's next request has come, another prefill is at the rank, or a
// request of a client was booked there meanwhile.
func (s *Sender) begin(t *Turn, d *decision.Decision, stop context.CancelFunc) (result string) {
	at := place{d.Worker, d.Rank}
	s.mu.Lock()
	switch {
	case t.dropped: // under the same lock as the registration: Decided sets it before, or finds the registration
		result = dropped
	case s.sent[at] != nil:
		result = busy
	default:
		s.sent[at] = &prefilling{t, stop}
	}
	s.mu.Unlock()
	if result == "" && s.router.IsDisturbed(d.ID) {
		s.end(d)
		result = busy
	}
	return result
}

// end takes a speculative prefill out of the table. No other one can have its place meanwhile, because begin refuses it.
func (s *Sender) end(d *decision.Decision) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sent, place{d.Worker, d.Rank})
}
