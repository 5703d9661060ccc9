package answers

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/internal/metric"
)

// tenantMetrics are the metrics by model and tenant. They have no buckets, because tenants can be many.
type tenantMetrics struct {
	requests, prompt, cached, tokens *prometheus.CounterVec
	firstToken                       *prometheus.SummaryVec
}

// tenantSeries are the metrics of one tenant with one model.
type tenantSeries struct {
	key
	prompt, cached prometheus.Counter
	tokens         tokenCounters
	firstToken     prometheus.Observer
}

func newTenantMetrics(reg prometheus.Registerer) tenantMetrics {
	part := metric.For(reg, "tenant")
	return tenantMetrics{
		requests: part.Counters("requests_total",
			"Requests by the tenant of Envoy's authentication and the class of the HTTP status, or refused, or none.",
			"model", "tenant", "code"),
		prompt: part.Counters("prompt_tokens_total", "Tokens in the prompts of the tenant's answered requests.", "model", "tenant"),
		cached: part.Counters("cached_tokens_total", "Tokens of these prompts that decisions found in workers' caches.", "model", "tenant"),
		tokens: part.Counters("answer_tokens_total", "Tokens of the tenant's answers, as stator_request_answer_tokens_total has them.",
			"model", "tenant", "source"),
		firstToken: part.Summaries("first_token_seconds",
			"Time from the tenant's requests to the first byte of the body of streamed answers, as Envoy measured it.", "model", "tenant"),
	}
}

// tenantLocked returns the series of a tenant. mu is held.
func (m *Metrics) tenantLocked(of key) *tenantSeries {
	if t := m.tenants[of]; t != nil {
		return t
	}
	if len(m.tenants) >= maxTenants && of.name != other {
		return m.tenantLocked(key{of.model, other})
	}
	// Tenants are never dropped: they have no list by which one could know that a tenant has left.
	v := &m.ofTenants
	t := &tenantSeries{
		key: of, tokens: countersOf(v.tokens, of),
		prompt: v.prompt.WithLabelValues(of.model, of.name), cached: v.cached.WithLabelValues(of.model, of.name),
		firstToken: v.firstToken.WithLabelValues(of.model, of.name),
	}
	m.tenants[of] = t
	return t
}
