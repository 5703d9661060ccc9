package answers

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/extproc/messages"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/metric"
	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/route/pick"
)

const (
	// maxWorkers bounds the workers with series, and maxTenants the pairs of a model and a tenant.
	maxWorkers = 4096
	maxTenants = 1024
	// other stands for the workers and tenants beyond these bounds.
	other = "other"
)

// The values of the label code: the class of the HTTP status that the client received.
const (
	codeNone    = "none"    // the client left before a status was sent
	codeRefused = "refused" // of tenants alone
)

// Metrics counts answers. Create it with [New].
type Metrics struct {
	// By model and worker, except refusals.
	requests   *prometheus.CounterVec
	retries    *prometheus.CounterVec
	refusals   *prometheus.CounterVec
	prompt     *prometheus.CounterVec
	cached     *prometheus.CounterVec
	tokens     *prometheus.CounterVec
	firstToken *prometheus.HistogramVec
	duration   *prometheus.HistogramVec
	ofTenants  tenantMetrics

	mu      sync.Mutex
	version uint64                // guarded by mu; of the fleet whose workers are known
	servers map[string]key        // guarded by mu; of the fleet's workers, by address
	workers map[key]*workerSeries // guarded by mu; at most maxWorkers, and one for each model beyond
	streams map[string]*density   // guarded by mu; by model, of those with workers
	tenants map[key]*tenantSeries // guarded by mu; at most maxTenants, and one for each model beyond
}

// key is a model, and the name of a worker or of a tenant.
type key struct{ model, name string }

// workerSeries are the metrics of one worker.
type workerSeries struct {
	key
	retries, prompt, cached prometheus.Counter
	tokens                  tokenCounters
	streams                 *density // of the model; guarded by Metrics.mu
	firstToken, duration    prometheus.Observer
}

// buckets are the upper bounds in seconds. Scrapers of native histograms get buckets of a tenth instead.
var buckets = []float64{
	.005, .01, .02, .03, .05, .075, .1, .15, .2, .3, .5, .75, 1, 1.5, 2, 3, 5, 7.5, 10, 15, 20, 30, 60, 120, 300,
}

// New registers the metrics.
func New(reg prometheus.Registerer) *Metrics {
	part := metric.For(reg, "request")
	return &Metrics{
		requests: part.Counters("answers_total",
			"Ended requests of workers by the class of the HTTP status: 2xx to 5xx, or none if the client left before it.",
			"model", "worker", "code"),
		retries: part.Counters("retries_total", "Requests that this worker answered after another one had failed.", "model", "worker"),
		refusals: part.Counters("refusals_total",
			"Refused requests of a known model, by reason. stator_extproc_requests_total has those of unknown models, too.",
			"model", "reason"),
		prompt: part.Counters("prompt_tokens_total", "Tokens in the prompts of answered requests.", "model", "worker"),
		cached: part.Counters("cached_tokens_total",
			"Tokens of these prompts that decisions found in the worker's cache, by the router's index.",
			"model", "worker"),
		tokens: part.Counters("answer_tokens_total",
			"Tokens of answers, by source: usage is the engine's count, and estimate is from the bytes of streams without it. "+
				"None without gateway.answerTokens.",
			"model", "worker", "source"),
		firstToken: part.Histograms("first_token_seconds",
			"Time from the request to the first byte of the body of a streamed answer, as Envoy measured it.", buckets, "model", "worker"),
		duration: part.Histograms("duration_seconds",
			"Time from the request to the last byte of the answer, as Envoy measured it.", buckets, "model", "worker"),
		ofTenants: newTenantMetrics(reg), workers: map[key]*workerSeries{}, streams: map[string]*density{},
		tenants: map[key]*tenantSeries{},
	}
}

// Refused counts a decision if it refuses a request.
func (m *Metrics) Refused(d *decision.Decision) {
	if d.Outcome != decision.Refused || d.Pool == "" {
		return
	}
	m.refusals.WithLabelValues(d.Pool, string(d.Reason)).Inc()
	if d.Account == "" {
		return
	}
	m.mu.Lock()
	t := m.tenantLocked(key{d.Pool, d.Account})
	m.mu.Unlock()
	m.ofTenants.requests.WithLabelValues(t.model, t.name, codeRefused).Inc()
}

// How has the facts about a request that are not in its access-log entry.
type How struct {
	// Retried means that a worker had failed before another one answered.
	Retried bool
	// Tokens means that Envoys read the usage in answers, so that the tokens of answers can be counted.
	Tokens bool
	// Trace is the id of the request's trace, if its span was exported; otherwise it is empty.
	Trace string
}

// Ended counts a request whose booking has ended. e is its access-log entry, and f the fleet. It returns the tokens of the answer, by its
// usage or estimated; 0 if they are not counted.
func (m *Metrics) Ended(k *pick.Booking, e *messages.Entry, how How, f *fleet.Snapshot) int64 {
	by := k.Caller.Value()
	w, t := m.seriesOf(k.Rank.Worker, by.Account, e.Served, f)
	code := class(e.Status)
	m.requests.WithLabelValues(w.model, w.name, code).Inc()
	if t != nil {
		m.ofTenants.requests.WithLabelValues(t.model, t.name, code).Inc()
	}
	if how.Retried {
		w.retries.Inc()
	}
	// An error has no tokens, and its times would make an engine look fast.
	if code != "2xx" {
		return 0
	}

	w.prompt.Add(float64(k.Prompt))
	w.cached.Add(float64(k.Cached))
	if e.LastByte > 0 && !e.Left && !e.Broken {
		metric.Observe(w.duration, e.LastByte.Seconds(), how.Trace)
	}
	streamed := by.Stream && e.FirstToken > 0
	if streamed {
		metric.Observe(w.firstToken, e.FirstToken.Seconds(), how.Trace)
	}
	var tokens int64
	counted := false
	if how.Tokens {
		m.mu.Lock()
		tokens, counted = w.streams.tokensOf(e, by.Stream)
		m.mu.Unlock()
		w.tokens.add(tokens, counted)
	}
	if t == nil {
		return tokens
	}
	t.tokens.add(tokens, counted)
	t.prompt.Add(float64(k.Prompt))
	t.cached.Add(float64(k.Cached))
	if streamed {
		t.firstToken.Observe(e.FirstToken.Seconds())
	}
	return tokens
}

// class returns the class of a status.
func class(status uint32) string {
	if status < 100 || status >= 600 {
		return codeNone
	}
	return [...]string{"1xx", "2xx", "3xx", "4xx", "5xx"}[status/100-1]
}

// seriesOf returns the series of the worker that served a request, or else was picked, and of its tenant; nil without one.
func (m *Metrics) seriesOf(picked *fleet.Worker, account, served string, f *fleet.Snapshot) (*workerSeries, *tenantSeries) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.followLocked(f)
	of, known := m.servers[served]
	if !known { // no worker answered, or the relay did for one
		of = key{picked.Model, picked.Name}
	}
	var t *tenantSeries
	if account != "" {
		t = m.tenantLocked(key{of.model, account})
	}
	return m.workerLocked(of), t
}

// followLocked learns the workers of the fleet, and drops the series of others. mu is held.
func (m *Metrics) followLocked(f *fleet.Snapshot) {
	// The fleet changes seldom, and most requests find it as it was.
	if m.servers != nil && m.version == f.Version {
		return
	}
	m.version = f.Version
	m.servers = make(map[string]key, len(f.Workers))
	present := make(map[key]bool, len(f.Workers))
	for _, w := range f.Workers {
		of := key{w.Model, w.Name}
		m.servers[w.Address] = of
		present[of] = true
	}

	for of := range m.workers {
		if !present[of] && of.name != other {
			m.dropLocked(of)
		}
	}
	// The series of workers that are there keep theirs.
	clear(m.streams)
	for of, w := range m.workers {
		m.streams[of.model] = w.streams
	}
}

// dropLocked drops the series of a worker. mu is held.
func (m *Metrics) dropLocked(of key) {
	delete(m.workers, of)
	labels := prometheus.Labels{"model": of.model, "worker": of.name}
	m.requests.DeletePartialMatch(labels)
	m.tokens.DeletePartialMatch(labels)
	for _, v := range []interface{ Delete(prometheus.Labels) bool }{m.retries, m.prompt, m.cached, m.firstToken, m.duration} {
		v.Delete(labels)
	}
}

// workerLocked returns the series of a worker. mu is held.
func (m *Metrics) workerLocked(of key) *workerSeries {
	if w := m.workers[of]; w != nil {
		return w
	}
	// Beyond the bound there is one more for each model, so that the sums by model stay right.
	if len(m.workers) >= maxWorkers && of.name != other {
		return m.workerLocked(key{of.model, other})
	}
	// The counters of a new worker begin with 0, which Prometheus needs to see the first increase.
	streams := m.streams[of.model]
	if streams == nil {
		streams = newDensity()
		m.streams[of.model] = streams
	}
	w := &workerSeries{
		key: of, tokens: countersOf(m.tokens, of), streams: streams,
		retries: m.retries.WithLabelValues(of.model, of.name), prompt: m.prompt.WithLabelValues(of.model, of.name),
		cached: m.cached.WithLabelValues(of.model, of.name), firstToken: m.firstToken.WithLabelValues(of.model, of.name),
		duration: m.duration.WithLabelValues(of.model, of.name),
	}
	m.workers[of] = w
	return w
}
