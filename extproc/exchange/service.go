package exchange

import (
	"context"
	"crypto/rand"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/extproc/quota"
	"github.com/stator-project/stator/extproc/spans"
	"github.com/stator-project/stator/extproc/speculate"
	"github.com/stator-project/stator/internal/metric"
	"github.com/stator-project/stator/internal/route"
	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/route/sessionid"
)

// Settings can be replaced while the service runs.
type Settings struct {
	// BodyBytes bounds a body, and BodiesBytes the sum of the bodies in each [Budget]. A request beyond the sum is answered with 503, or is
	// computed by its decode worker alone.
	BodyBytes, BodiesBytes int64
	// PassPaths are the paths whose requests reach workers although their bodies are not parsed. One that ends
	// in "/*" stands for all paths below it.
	PassPaths []string
	// DefaultModel serves the requests that name no model. It is the first one.
	DefaultModel string
	// SeveralPools means that there is more than one pool, so that Envoy needs the pool of every pick.
	SeveralPools bool
	// Sessions are the places in which clients name their sessions. The first one that a request has counts.
	Sessions       []sessionid.Source
	sessionHeaders []string // of Sessions

	// Hints selects the routing hints of trusted clients that count. Empty means HintsBody.
	Hints Hints
	// TrustEveryone trusts all clients. Otherwise a client is trusted on Envoy's listener for trusted clients,
	// and if Envoy's own authentication has set RoleHeader, in lower case, to one of TrustedRoles.
	TrustEveryone bool
	RoleHeader    string
	TrustedRoles  []string
	// TenantHeader is the header with the client's tenant by Envoy's own authentication, in lower case. Empty
	// means that there are no tenants.
	TenantHeader string
	// Authenticated means that the gateway's own listener authenticates clients, and sets TenantHeader.
	Authenticated bool
	// AccessLog means that Envoys write an access log, which has facts of picks.
	AccessLog bool
	// AnswerTokens means that Envoys read the usage in answers.
	AnswerTokens bool
	// Limits bound what tenants may send.
	Limits quota.Settings
	// Migrations are by model. Streams of other models go to their workers directly.
	Migrations map[string]Migration
	// Sidecars means that sidecars of decode workers send prompts to the prefill worker that a header names.
	Sidecars bool
}

// Service is the state that all exchanges of a router share.
type Service struct {
	router   *route.Router
	feedback Feedback // nil for none
	log      *slog.Logger
	metrics  *metrics
	started  time.Time
	settings atomic.Pointer[Settings]
	// The budgets of bodies: for decisions, and at prefill workers.
	bodies, prefilling Budget
	relay              relay

	quotas   *quota.Table
	routers  func() int // that decide, this one included
	panics   panicLog
	prefills Prefills
	turns    *speculate.Sender // nil for none
	clock    Clock
	shadow   bool
	// tenantKey returns the key of tenants' salts.
	tenantKey func() []byte
	// spans are those of the latest decisions whose requests have not ended.
	tracer *spans.Tracer // nil for none
	spans  latest[*spans.Span]
	// decisions keeps the memory of decisions for later requests.
	decisions sync.Pool // of *route.Decision
}

// Config is read by New and not changed later.
type Config struct {
	Router *route.Router
	// Started is the time at which the process began to serve: the time of creation of its models in OpenAI's format.
	Started time.Time
	// Prefills has prefill workers compute prompts. Run closes it.
	Prefills Prefills
	// Turns has the prefixes of next turns computed; nil for none.
	Turns *speculate.Sender
	// Clock is the time by which requests wait; nil means SystemClock.
	Clock Clock
	// Relay is the ip:port of the relay, as Envoys reach it; empty for none.
	Relay string
	// Quotas counts what tenants have sent; nil is a new table.
	Quotas *quota.Table
	// Routers returns the number of routers that decide, this one included; nil is this one alone.
	Routers func() int
	// Shadow means that the requests are copies, and that no one awaits their decisions: see [route.Config].
	Shadow bool
	// TenantKey returns the key of tenants' cache salts, which must be secret, and the same in all routers of a gateway. Nil is a
	// random one.
	TenantKey func() []byte
	// Feedback receives the ends of requests that no access log reports. Nil means that none is followed.
	Feedback Feedback
	// Tracer exports the spans of requests; nil for none.
	Tracer  *spans.Tracer
	Log     *slog.Logger
	Metrics prometheus.Registerer
}

// New returns a service that decides with cfg.Router.
func New(set Settings, cfg Config) *Service {
	s := &Service{router: cfg.Router, feedback: cfg.Feedback, log: cfg.Log, started: cfg.Started,
		relay: relay{address: cfg.Relay}, tenantKey: cfg.TenantKey, prefills: cfg.Prefills, turns: cfg.Turns, clock: cfg.Clock,
		shadow: cfg.Shadow, quotas: cfg.Quotas, routers: cfg.Routers, tracer: cfg.Tracer}
	if s.quotas == nil {
		s.quotas = quota.New()
	}
	if s.routers == nil {
		s.routers = func() int { return 1 }
	}
	if s.tenantKey == nil {
		key := []byte(rand.Text())
		s.tenantKey = func() []byte { return key }
	}
	if s.clock == nil {
		s.clock = SystemClock{}
	}
	s.metrics = newMetrics(cfg.Metrics, &s.bodies, &s.prefilling)
	s.panics.log = cfg.Log
	s.decisions.New = func() any { return new(decision.Decision) }
	s.Reload(set)
	return s
}

// Reload replaces the settings. A request that has begun may use old and new ones.
func (s *Service) Reload(set Settings) {
	for _, b := range []*Budget{&s.bodies, &s.prefilling, &s.relay.bodies, &s.relay.streams} {
		b.limit.Store(set.BodiesBytes)
	}
	set.sessionHeaders = sessionid.Headers(set.Sessions)
	s.settings.Store(&set)
}

// Settings returns the settings of now. They must not be changed.
func (s *Service) Settings() *Settings { return s.settings.Load() }

// Reserve adds the bytes of a body to the sum of the bodies for which decisions are being made. It returns false if the sum would exceed
// the budget. The door calls [Exchange.OnOverload] then.
func (s *Service) Reserve(bytes int) bool { return s.bodies.Reserve(bytes) }

// Free takes reserved bytes away.
func (s *Service) Free(bytes int) { s.bodies.Free(bytes) }

// IsShadow reports whether the requests are copies: see [Config].
func (s *Service) IsShadow() bool { return s.shadow }

// RelayBudget returns the budget of the bodies at the relay.
func (s *Service) RelayBudget() *Budget { return &s.relay.bodies }

// StreamBudget returns the budget of the token ids and the events that streams at the relay hold.
func (s *Service) StreamBudget() *Budget { return &s.relay.streams }

// CountProtocolError counts a request whose events did not fit the door's protocol.
func (s *Service) CountProtocolError() { s.metrics.outcomes.WithLabelValues("protocol_error").Inc() }

// Origin has the facts that the door knows about a request before its headers, and that no client can set.
type Origin struct {
	// Source is the name of the Envoy.
	Source string
	// Context ends when Envoy takes no more replies, because the client has left. Nil never ends.
	Context context.Context
	// Configured means that the whole configuration of the Envoy is from package xds, so that the values in the headers of roles and
	// tenants come from clients. ReadsMetadata means that the Envoy reads the pick from the metadata.
	Configured, ReadsMetadata bool
	// TrustedListener means that the request came on Envoy's listener for trusted clients.
	TrustedListener bool
	// Traceparent is the trace context of Envoy's span; empty without one. It is read if there is a tracer: see [Service.Traces].
	Traceparent string
}

// Begin returns the exchange of a new request.
func (s *Service) Begin(from Origin) Exchange {
	if from.Context == nil {
		from.Context = context.Background()
	}
	return Exchange{svc: s, origin: from, prefilled: prefilled{cached: -1}}
}

// observed counts a reply that ends the decision, which began at that time, and returns it. Decisions after a wait are
// not part of the duration: their time is the queue's.
func (x *Exchange) observed(r Reply, began time.Time) Reply {
	if !r.Last {
		return r
	}
	if r.Answer != nil {
		r.Answer = r.Answer.For(x.target.path)
	}
	s, duration := x.svc, x.svc.clock.Now().Sub(began)
	outcome := outcomePicked
	if r.Answer != nil {
		outcome = r.Answer.Detail
		s.metrics.outcomes.WithLabelValues(outcome).Inc()
	} else {
		s.metrics.picked.Inc()
	}
	if r.Pick != nil {
		if r.Pick.Wait == nil && !r.Pick.Split {
			metric.Observe(s.metrics.duration, duration.Seconds(), x.span.Trace())
		}
		s.metrics.blocks.Observe(float64(r.Pick.Blocks))
	}

	x.decideSpan(&r, outcome)
	if s.log.Enabled(context.Background(), slog.LevelDebug) {
		x.logReply(r, outcome, duration)
	}
	return r
}

// logReply logs one request at level debug.
func (x *Exchange) logReply(r Reply, outcome string, duration time.Duration) {
	if r.Pick == nil {
		x.svc.log.Debug("request answered", "outcome", outcome, "method", x.head.Method, "path", clip(x.head.Path),
			"status", r.Answer.Status, "duration", duration)
		return
	}
	x.svc.log.Debug("request picked", "decision", r.Pick.ID, "model", r.Pick.Model, "worker", r.Pick.Worker, "rank", r.Pick.Rank,
		"blocks", r.Pick.Blocks, "overlap", r.Pick.Overlap, "duration", duration)
}
