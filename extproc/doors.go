package extproc

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/stator-project/stator/extproc/accesslog"
	"github.com/stator-project/stator/extproc/exchange"
	"github.com/stator-project/stator/extproc/prefill"
	"github.com/stator-project/stator/extproc/quota"
	"github.com/stator-project/stator/extproc/relay"
	"github.com/stator-project/stator/extproc/speculate"
	"github.com/stator-project/stator/extproc/stream"
	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/grpcserve"
	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/route/sessionid"
)

// doors are the servers that Envoy connects to:
//
//	stream      the external processor, which decides where a request goes
//	accessLog   the receiver of Envoy's access log, which ends bookings
//	relay       an HTTP server for requests that Envoy cannot send twice, such as those to a prefill and a decode worker at once
//
// The first and the last are doors to the same requests. The first two share one gRPC server, so that an Envoy has one address to configure
// and one health check.
type doors struct {
	log       *slog.Logger
	requests  *exchange.Service // of requests from all doors
	stream    *stream.Server
	accessLog *accesslog.Server
	grpc      *grpc.Server // serves both
	endings   grpcserve.Endings
	health    *health.Server
	relay     *relay.Handler
	turns     *speculate.Sender
	relayAt   net.Listener // nil without a relay
}

// newDoors makes the doors. They share one listener, so that an Envoy has
// one address to configure and one health check.
func (r *Router) newDoors(cfg Config) {
	d := &doors{relayAt: cfg.Relay, log: cfg.Log, health: newHealth()}
	r.doors = d
	r.ends = newForeignEnds(cfg.Log, cfg.Metrics)
	d.accessLog = accesslog.NewServer(accesslog.Config{
		Bookings: r.routes, Replica: r.replica, Foreign: r.foreignEnded, Gone: r.logClosed,
		Ended: r.requestEnded, Log: cfg.Log, Metrics: cfg.Metrics,
	})
	relayAt := ""
	if cfg.Relay != nil {
		relayAt = cfg.Relay.Addr().String()
	}
	var feedback exchange.Feedback = d.accessLog
	if cfg.Shadow {
		feedback = &watcher{log: r.decisionLog}
	}
	d.turns = speculate.New(speculate.Config{Router: r.routes, Log: cfg.Log, Metrics: cfg.Metrics, Engines: cfg.Engines})
	d.requests = exchange.New(requestSettings(cfg.Settings), exchange.Config{
		Prefills: prefill.New(prefill.Config{Router: r.routes, Log: cfg.Log, Metrics: cfg.Metrics, Engines: cfg.Engines}),
		Router:   r.routes, Started: time.Now(), Feedback: feedback, Log: cfg.Log, Metrics: cfg.Metrics, Relay: relayAt,
		TenantKey: cfg.TenantKey, Shadow: cfg.Shadow, Quotas: r.quotas, Routers: r.routers,
		Tracer: r.tracer, Turns: d.turns,
	})
	d.relay = relay.New(relay.Config{Requests: d.requests, Log: cfg.Log, Metrics: cfg.Metrics, Engines: cfg.Engines})
	d.stream = stream.NewServer(d.requests, cfg.Log, cfg.Metrics)

	options := append(stream.Options(config.MaxBodyBytes), d.endings.Option())
	d.grpc = grpc.NewServer(append(options, accesslog.Options()...)...)
	stream.Register(d.grpc, d.stream)
	accesslog.Register(d.grpc, d.accessLog)
	healthv1.RegisterHealthServer(d.grpc, d.health)
}

// drain lets streams end until ctx ends, and has Envoys connect elsewhere. Then it stops the gRPC server. An Envoy that gets GOAWAY opens
// its next stream on another connection, which this process does not accept any more: it goes to another router, or its request goes on
// without a decision.
func (d *doors) drain(ctx context.Context) {
	var refusing sync.WaitGroup
	d.stream.Drain(ctx, func() {
		// It waits for all streams, the access log among them, until the server is stopped.
		refusing.Go(d.grpc.GracefulStop)
	})
	d.grpc.Stop()
	refusing.Wait()
}

// serveRelay serves the relay until ctx ends. Without it, the requests that name it fail, and Envoy has no other address for them; requests
// that have a decode worker's address first are served while it does not fail.
func (d *doors) serveRelay(ctx context.Context, drain time.Duration, hard context.Context) {
	err := d.relay.Serve(ctx, d.relayAt, drain, hard)
	if err != nil {
		d.log.Error("the relay has ended", "err", err)
	}
}

// requestSettings returns the settings that the exchanges of requests need. The first model serves requests that
// name no model. With one model Envoy needs no pool: its only route leads there.
//
// Names of headers, limits and hints are those of the configuration. Nothing here has a default: the configuration has set them.
func requestSettings(settings *config.Config) exchange.Settings {
	g := &settings.Gateway
	// Without a model, because none has been discovered yet, requests that name none are refused as those that name one are: 503.
	first := ""
	if len(settings.Models) > 0 {
		first = settings.Models[0].Name
	}

	return exchange.Settings{
		Limits:        limitsOf(&g.Limits),
		BodyBytes:     g.MaxBodyBytes,
		BodiesBytes:   g.MaxBodiesBytes,
		PassPaths:     g.PassPaths,
		DefaultModel:  first,
		SeveralPools:  len(settings.Models) > 1,
		Sessions:      sessionid.ParseAll(g.Sessions),
		Hints:         exchange.Hints(g.Hints),
		TrustEveryone: g.TrustsEveryone(),
		RoleHeader:    g.RoleHeader,
		TrustedRoles:  g.TrustedRoles,
		TenantHeader:  g.TenantHeader,
		Authenticated: g.Auth.IsOn(),
		AccessLog:     g.AccessLog != "",
		AnswerTokens:  g.AnswerTokens,
		Sidecars:      g.Sidecars,
		Migrations:    migrationsOf(settings.Models),
	}
}

// migrationsOf returns how streams are continued, of the models that have migration.
func migrationsOf(models []config.Model) map[string]exchange.Migration {
	byModel := map[string]exchange.Migration{}
	for i := range models {
		if m := &models[i].Migration; m.Limit > 0 {
			byModel[models[i].Name] = exchange.Migration{Limit: m.Limit, Sampled: m.Sampled}
		}
	}
	return byModel
}

// limitsOf returns what tenants may send. A tenant that the configuration names has its own limits alone. Names are as decisions keep them.
func limitsOf(l *config.Limits) quota.Settings {
	s := quota.Settings{Own: map[string]quota.Limits{}, All: quota.Limits{
		RequestsPerMinute: l.RequestsPerMinute, PromptTokensPerMinute: l.PromptTokensPerMinute,
		AnswerTokensPerMinute: l.AnswerTokensPerMinute, TokensPerDay: l.TokensPerDay, TokensPerMonth: l.TokensPerMonth,
	}}
	for _, t := range l.Tenants {
		s.Own[decision.Label(t.Name)] = quota.Limits{
			RequestsPerMinute: t.RequestsPerMinute, PromptTokensPerMinute: t.PromptTokensPerMinute,
			AnswerTokensPerMinute: t.AnswerTokensPerMinute, TokensPerDay: t.TokensPerDay, TokensPerMonth: t.TokensPerMonth,
		}
	}
	return s
}
