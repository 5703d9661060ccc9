package config

import (
	"cmp"
	"math"
	"reflect"
	"slices"
	"time"

	"github.com/stator-project/stator/internal/engines"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/drift"
	"github.com/stator-project/stator/internal/kv/kvindex"
	"github.com/stator-project/stator/internal/plan"
	"github.com/stator-project/stator/internal/route/cost"
	"github.com/stator-project/stator/internal/route/pick"
	"github.com/stator-project/stator/internal/route/queue"
	"github.com/stator-project/stator/internal/route/serving"
	"github.com/stator-project/stator/internal/route/sessionid"
)

// Defaults are set before a file is decoded, in every struct that the file fills: the file's own values
// replace them. So a 0 in the file is a 0, and not an absent value. A default belongs to the package that
// uses the value; it stands here if that package does I/O.

// defaulter is a struct with defaults.
type defaulter interface{ setDefaults() }

// applyDefaults sets the defaults of a struct and of the structs in it.
func applyDefaults(v reflect.Value) {
	if v.Kind() != reflect.Struct {
		return
	}
	if d, ok := v.Addr().Interface().(defaulter); ok {
		d.setDefaults()
	}
	for i := range v.NumField() {
		applyDefaults(v.Field(i))
	}
}

func (g *Gateway) setDefaults() {
	*g = Gateway{
		Listen:          "127.0.0.1:8080",
		MaxBodyBytes:    32 << 20,
		MaxBodiesBytes:  256 << 20,
		DecisionTimeout: Duration(5 * time.Second),
		IdleTimeout:     Duration(10 * time.Minute),

		AttemptIdleTimeout: notSetDuration,

		HeadersTimeout: Duration(10 * time.Second),
		BodyTimeout:    Duration(2 * time.Minute),
		MaxConnections: 10_000,

		ConnectionIdleTimeout: Duration(75 * time.Second), // longer than most clients keep connections that they do not use

		Sessions:       sessionid.Defaults(),
		AffinityFilter: affinityOff,
		Hints:          hintsBody,
		HintsFrom:      hintsFromTrusted,
	}
}

func (t *EngineTLS) setDefaults() { t.ServerName = "stator-engine" }

func (i *Issuer) setDefaults() {
	i.JWKSCAFile = "/etc/ssl/certs/ca-certificates.crt"
	i.TenantClaim = "sub"
}

// authHeader is the default of gateway.tenantHeader with gateway.auth.
const authHeader = "x-tenant"

// The paths that pass by default are those by which clients have an engine compute something. They change no state that another
// client could notice.
var (
	// saltedPaths are those on which engines take a cache_salt, or put no prompt into a cache.
	saltedPaths = []string{
		"/v1/messages/count_tokens",
		"/v1/rerank", "/v2/rerank", "/rerank", "/v1/score", "/score", "/classify", "/pooling",
		"/tokenize", "/detokenize",
	}
	// unsaltedPaths are further ones, if clients have no tenants.
	unsaltedPaths = []string{
		"/v1/audio/speech", "/v1/audio/transcriptions", "/v1/audio/translations",
		"/v1/images/generations", "/v1/images/edits", "/v1/moderations",
	}
)

func (r *Router) setDefaults() {
	r.Policy = pick.KV
	r.Prefill = string(serving.PrefillAuto)
	r.Cost = cost.NameDelay
}

// notSet stands for a number whose default depends on another value of the file. A file can only spell it
// as .nan, which is not worth telling apart.
var notSet = math.NaN()

// notSetText stands for a text whose default depends on another value of the file.
const notSetText = "\x00"

// notSetDuration stands for a duration whose default depends on another value of the file.
const notSetDuration Duration = -1

func (b *Busy) setDefaults() {
	b.Status = serving.DefaultBusyStatus
}

func (q *Queue) setDefaults() {
	q.Requests = queue.DefaultRequests
	q.Hold = notSetDuration
	q.Order = queue.FCFS.String()
}

func (c *Class) setDefaults() { c.Quantum = queue.DefaultQuantum }

func (l *Launch) setDefaults() {
	l.Count = 1
	l.Role = fleet.Aggregated.String()
	l.Min, l.Max = notSetCount, notSetCount
	l.StartUp = Duration(time.Minute)
}

// inherit fills fields that depend on other values of the file, after decoding.
func (l *Launch) inherit(m *Model) {
	fixed := l.Max == notSetCount
	if fixed {
		l.Max = l.Count
	}
	if l.Min == notSetCount {
		l.Min = 1
		switch {
		case m.IdleAfter > 0:
			l.Min = 0
		case fixed:
			l.Min = l.Count
		}
	}
}

// notSetCount stands for a number of processes whose default depends on another value of the file.
const notSetCount = math.MinInt

func (t *Targets) setDefaults() {
	*t = Targets{TTFT: notSetDuration, ITL: notSetDuration, E2E: notSetDuration, Quantile: notSet}
}

// inherit takes over the targets of all models.
func (t *Targets) inherit(p *Planner) {
	for _, v := range []struct{ own, all *Duration }{{&t.TTFT, &p.TTFT}, {&t.ITL, &p.ITL}, {&t.E2E, &p.E2E}} {
		if *v.own == notSetDuration {
			*v.own = *v.all
		}
	}
	if math.IsNaN(t.Quantile) {
		t.Quantile = p.Quantile
	}
}

func (p *Planner) setDefaults() {
	*p = Planner{
		Algorithm: plan.AlgorithmConfigured, Connector: ConnectorNone, Interval: Duration(plan.DefaultEvery),
		TTFT: Duration(500 * time.Millisecond), ITL: Duration(50 * time.Millisecond), Quantile: 0.9,
		Mode: plan.ModeBoth, Forecast: "auto", Headroom: plan.DefaultHeadroom, DownAfter: Duration(plan.DefaultDownAfter),
		DrainTimeout: Duration(5 * time.Minute),
	}
}

func (w *Worker) setDefaults() {
	w.Role = fleet.Aggregated.String()
	w.Engine = engines.VLLM.Name
	w.Ranks = 1
	w.Weight = fleet.DefaultWeight
	w.HealthPath = notSetText
	w.Transfer = notSetText
}

func (x *Index) setDefaults() {
	*x = Index{MaxBytes: kvindex.DefaultMaxBytes, DriftTokens: drift.DefaultTokens}
}

func (p *Prompts) setDefaults() { p.MemoryBytes = 64 << 20 }

func (d *Decisions) setDefaults() {
	d.LogBytes = 256 << 20
	d.HashEvery = 32
}

func (t *Tracing) setDefaults() {
	t.Ratio = 0.01
	t.SlowerThan = Duration(10 * time.Second)
}

// The defaults of bus.cluster and bus.leaseTTL.
const (
	DefaultCluster  = "default"
	DefaultLeaseTTL = Duration(10 * time.Second)
)

func (b *Bus) setDefaults() {
	b.Cluster = DefaultCluster
	b.LeaseTTL = DefaultLeaseTTL
}

// inherit fills fields that depend on other values of the file, after decoding.
func (g *Gateway) inherit() {
	if g.Auth.IsOn() {
		g.TenantHeader = cmp.Or(g.TenantHeader, authHeader)
	}
	if g.PassPaths == nil {
		g.PassPaths = slices.Clone(saltedPaths)
		if g.TenantHeader == "" {
			g.PassPaths = append(g.PassPaths, unsaltedPaths...)
		}
	}
	if g.AttemptIdleTimeout == notSetDuration {
		g.AttemptIdleTimeout = max(g.IdleTimeout/2, minIdle) // a second attempt has the other half
	}
}

// inherit fills fields that depend on other values of the file, after decoding.
func (m *Model) inherit(g *Gateway) {
	m.Router.inherit(g)
	for i := range m.Adapters {
		m.Adapters[i].EngineName = cmp.Or(m.Adapters[i].EngineName, m.Adapters[i].Name)
	}
	for i := range m.Launch {
		m.Launch[i].inherit(m)
	}
	for i := range m.Workers {
		m.Workers[i].inherit(m)
	}
}

// inherit fills fields that depend on other values, after decoding.
func (w *Worker) inherit(m *Model) {
	w.fillTransfer()
	if w.HealthPath == notSetText {
		w.HealthPath = engines.Of(w.Engine).HealthPath(m.Name)
	}
}

// defaultHold covers the start of most engines, and is shorter than the patience of most clients.
const defaultHold = Duration(5 * time.Minute)

// inherit fills fields that depend on other values of the file, after decoding.
func (r *Router) inherit(g *Gateway) {
	if r.Queue.Hold == notSetDuration {
		r.Queue.Hold = max(minWait, min(defaultHold, g.IdleTimeout-waitMargin))
	}
	for i := range r.Queue.Classes {
		if r.Queue.Classes[i].Order == "" {
			r.Queue.Classes[i].Order = r.Queue.Order
		}
	}
}
