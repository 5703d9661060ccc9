// Package prometheus reads demand from a Prometheus server, for fleets whose routers are not Stator's: the queries come from NVIDIA
// Dynamo's planner, over the metrics of Dynamo's frontends.
package prometheus

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stator-project/stator/internal/plan"
)

// Config is read by New and not changed later.
type Config struct {
	// URL is the server, such as "http://prometheus:9090".
	URL string
	// TokenFile is a file with a bearer token, which is read again at every request; empty for none.
	TokenFile string
	// CAFile has the certificates that may have signed the server's, in PEM; empty for the system's.
	CAFile string
	// Namespace is Dynamo's namespace of the metrics; empty for any.
	Namespace string
}

const (
	// timeout bounds one query, and maxAnswer its answer in bytes.
	timeout   = 10 * time.Second
	maxAnswer = 8 << 20
	// window is the least time over which counters are compared. Prometheus needs two scrapes in it.
	window = time.Minute
	// maxModels bounds the models of an answer.
	maxModels = 1024
)

// Source reads demand. Create it with [New]. It belongs to one goroutine.
type Source struct {
	cfg    Config
	client *http.Client
	last   time.Time
}

// New returns a source that has asked nothing.
func New(cfg Config) (*Source, error) {
	transport := &http.Transport{MaxIdleConnsPerHost: 1, IdleConnTimeout: 2 * time.Minute}
	if cfg.CAFile != "" {
		pem, err := os.ReadFile(cfg.CAFile)
		if err != nil {
			return nil, fmt.Errorf("planner.prometheus.caFile: %w", err)
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("planner.prometheus.caFile: %s has no certificate in PEM", cfg.CAFile)
		}
		transport.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	return &Source{cfg: cfg, client: &http.Client{Transport: transport, Timeout: timeout}}, nil
}

// The metrics of Dynamo's frontends. Each histogram has a sum and a count.
const (
	requestsStarted = "dynamo_frontend_requests_started_total"
	requests        = "dynamo_frontend_requests_total"
	promptTokens    = "dynamo_frontend_input_sequence_tokens"
	answerTokens    = "dynamo_frontend_output_sequence_tokens"
	hitRate         = "dynamo_component_router_kv_hit_rate"
)

// Take returns the demand since the last call, by the counters of the last minute or of that time, whichever is longer. Figures that
// the server does not have are absent. Take returns the error of the query for arrivals: without it there is no demand.
func (s *Source) Take(ctx context.Context, now time.Time) ([]plan.Demand, error) {
	over := plan.DefaultEvery
	if !s.last.IsZero() {
		over = max(now.Sub(s.last), time.Second)
	}
	s.last = now
	span := max(over, window)

	arrived, err := s.increase(ctx, requestsStarted, span)
	if err == nil && len(arrived) == 0 { // releases before 1.5 do not count starts
		arrived, err = s.increase(ctx, requests, span)
	}
	if err != nil {
		return nil, err
	}
	if len(arrived) == 0 {
		return nil, errors.New("the server has no arrivals of Dynamo's frontends: check planner.prometheus.url and namespace")
	}

	// The means of all requests of the span. A query that fails leaves its figure out.
	var failed []error
	mean := func(metric string) map[string]float64 {
		values, err := s.mean(ctx, metric, span)
		failed = append(failed, err)
		return values
	}
	prompt, answer := mean(promptTokens), mean(answerTokens)
	hit := mean(hitRate)

	var out []plan.Demand
	for _, model := range slices.Sorted(maps.Keys(arrived)) {
		n := int(math.Round(arrived[model] * over.Seconds() / span.Seconds()))
		d := plan.Demand{Model: model, Over: over, Requests: n}
		d.Prompt, d.Answer = lengths(n, prompt[model]), lengths(n, answer[model])
		share, known := hit[model]
		if !known {
			share = hit[""] // the router's metric has no model
		}
		d.CachedTokens = min(max(share, 0), 1) * d.Prompt.Sum
		out = append(out, d)
	}
	return out, errors.Join(failed...)
}

// lengths returns n lengths of a mean. Their spread is not known: as in Dynamo, all are equal.
func lengths(n int, mean float64) plan.Lengths {
	if n == 0 || mean <= 0 {
		return plan.Lengths{}
	}
	return plan.Lengths{Count: n, Sum: float64(n) * mean, Squares: float64(n) * mean * mean}
}

// increase returns by how much a counter has grown, by model.
func (s *Source) increase(ctx context.Context, metric string, span time.Duration) (map[string]float64, error) {
	return s.query(ctx, fmt.Sprintf("sum by (model) (increase(%s%s[%ds]))", metric, s.selector(), int(span.Seconds())))
}

// mean returns the mean of a histogram's observations, by model.
func (s *Source) mean(ctx context.Context, metric string, span time.Duration) (map[string]float64, error) {
	part := func(of string) string {
		return fmt.Sprintf("sum by (model) (increase(%s_%s%s[%ds]))", metric, of, s.selector(), int(span.Seconds()))
	}
	return s.query(ctx, part("sum")+" / "+part("count"))
}

// selector returns the labels of the namespace. Dynamo writes hyphens as underscores.
func (s *Source) selector() string {
	if s.cfg.Namespace == "" {
		return ""
	}
	return "{dynamo_namespace=" + strconv.Quote(strings.ReplaceAll(s.cfg.Namespace, "-", "_")) + "}"
}

// answer is an answer of Prometheus' API.
type answer struct {
	Status string `json:"status"`
	Error  string `json:"error"`
	Data   struct {
		Result []struct {
			Metric map[string]string `json:"metric"`
			Value  [2]any            `json:"value"`
		} `json:"result"`
	} `json:"data"`
}

// query returns the values of an instant query by model. Values that are no numbers are left out: a mean of no requests is NaN.
func (s *Source) query(ctx context.Context, text string) (map[string]float64, error) {
	at := strings.TrimSuffix(s.cfg.URL, "/") + "/api/v1/query?" + url.Values{"query": {text}}.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return nil, fmt.Errorf("query Prometheus: %w", err)
	}
	if s.cfg.TokenFile != "" {
		token, err := os.ReadFile(s.cfg.TokenFile)
		if err != nil {
			return nil, fmt.Errorf("planner.prometheus.tokenFile: %w", err)
		}
		req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	}

	resp, err := s.client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("query Prometheus: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return nil, fmt.Errorf("query Prometheus: %w", err)
	}
	if len(data) > maxAnswer {
		return nil, fmt.Errorf("query Prometheus: the answer has more than %d MB", maxAnswer>>20)
	}
	return parse(resp.StatusCode, data)
}

// parse reads an answer.
func parse(status int, data []byte) (map[string]float64, error) {
	var a answer
	if err := json.Unmarshal(data, &a); err != nil {
		return nil, fmt.Errorf("query Prometheus: HTTP %d, and the answer is not that of its API: check planner.prometheus.url", status)
	}
	if a.Status != "success" {
		return nil, fmt.Errorf("query Prometheus: HTTP %d: %.200s", status, a.Error)
	}
	if len(a.Data.Result) > maxModels {
		return nil, fmt.Errorf("query Prometheus: %d models: at most %d are read", len(a.Data.Result), maxModels)
	}

	out := map[string]float64{}
	for _, r := range a.Data.Result {
		text, ok := r.Value[1].(string)
		v, err := strconv.ParseFloat(text, 64)
		if ok && err == nil && v >= 0 && v <= 1e15 {
			out[r.Metric["model"]] = v
		}
	}
	return out, nil
}
