// Package history keeps the last hour of a process: its rates, times and loads in steps.
//
// A [History] reads the process's own metrics every [Step] and keeps the differences as [Steps] points of fixed size, some 35 KiB. Nothing
// is stored on a disk; Prometheus is for longer times.
package history

import (
	"context"
	"encoding/json"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

const (
	// Step is the time between two points of a [History], and Steps how many it keeps: an hour.
	Step  = 15 * time.Second
	Steps = 240
)

// Point is one step of the last hour. Rates are per second, and averages of the step. Times are NaN, null in JSON, if no request ended in
// the step.
type Point struct {
	At time.Time `json:"at"` // the end of the step

	// Requests that got a worker, that were refused, that no worker has answered, and that another worker than the picked one has.
	Picked  float64 `json:"picked_per_second"`
	Refused float64 `json:"refused_per_second"`
	Failed  float64 `json:"failed_per_second"`
	Retried float64 `json:"retried_per_second"`
	// Tokens of the prompts of picked requests, the tokens that the picked worker had cached, and tokens of answers.
	Prompt float64 `json:"prompt_tokens_per_second"`
	Cached float64 `json:"cached_tokens_per_second"`
	Answer float64 `json:"answer_tokens_per_second"`

	// The load of the fleet as this router knows it:
	// requests that are booked and that wait in the queue, at the end of the step.
	Booked float64 `json:"booked_requests"`
	Queued float64 `json:"queued_requests"`
	// Times from the request to the first byte of a streamed answer, and to the last byte of any.
	First50 Seconds `json:"first_token_p50_seconds"`
	First95 Seconds `json:"first_token_p95_seconds"`
	Request Seconds `json:"request_p50_seconds"`
	// Ranks whose caches are known exactly, and the memory of this process, at the end of the step.
	Exact    float64 `json:"exact_ranks"`
	Resident float64 `json:"resident_bytes"`
}

// Seconds is a time, or NaN for an unknown one.
type Seconds float64

// MarshalJSON writes null for NaN, which JSON does not have.
func (s Seconds) MarshalJSON() ([]byte, error) {
	if math.IsNaN(float64(s)) {
		return []byte("null"), nil
	}
	return json.Marshal(float64(s))
}

// sums are the metrics of a process at one time, summed over workers and models.
type sums struct {
	at                       time.Time
	counts                   map[string]float64
	firstToken, wholeRequest buckets
}

// buckets are the cumulative counts of a histogram by their upper bounds, in seconds. The largest bound is infinite.
type buckets map[float64]float64

// History keeps the last hour of a process. It is safe for concurrent use. One goroutine runs Run; pages read Points.
type History struct {
	metrics prometheus.Gatherer

	// mu guards the fields below. Readers copy the points.
	mu     sync.Mutex
	last   sums    // the sums at the end of the last point
	points []Point // the oldest first; at most Steps
}

// New returns an empty history. Run fills it.
func New(metrics prometheus.Gatherer) *History { return &History{metrics: metrics} }

// Run reads the metrics of the process and adds a point every [Step], until ctx ends. It returns nil.
func (h *History) Run(ctx context.Context) error {
	tick := time.NewTicker(Step)
	defer tick.Stop()
	for now := time.Now(); ; {
		families, err := h.metrics.Gather()
		if len(families) > 0 || err == nil { // Gather returns what it has beside an error
			h.Add(now, families)
		}
		select {
		case <-ctx.Done():
			return nil
		case now = <-tick.C:
		}
	}
}

// Add adds a point, and drops the oldest one of a full hour. The point has the difference between these metrics and those before. The
// first call adds none.
func (h *History) Add(at time.Time, families []*dto.MetricFamily) {
	now := sum(at, families)
	h.mu.Lock()
	defer h.mu.Unlock()

	// Two readings at the same time have no rate between them.
	if !h.last.at.IsZero() && at.After(h.last.at) {
		h.points = append(h.points, point(&h.last, &now))
		if extra := len(h.points) - Steps; extra > 0 {
			h.points = slices.Delete(h.points, 0, extra)
		}
	}
	h.last = now
}

// Points returns a copy of the points, the oldest first. There are none in the first [Step] of a process.
func (h *History) Points() []Point {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.points)
}

// The names of sums. The first ones are counts since the start of the process, of which a point has the difference. Those from booked on
// are values at one time.
const (
	picked   = "picked"
	refused  = "refused"
	failed   = "failed"
	retried  = "retried"
	prompt   = "prompt"
	cached   = "cached"
	answer   = "answer"
	booked   = "booked"
	queued   = "queued"
	exact    = "exact"
	resident = "resident"
)

// counted names the sum that each metric is a part of. Metrics of which only some labels count, and histograms, are in sum itself.
// A process without a part has none of its metrics, and their sums are 0.
var counted = map[string]string{
	"stator_request_retries_total":       retried,
	"stator_route_prompt_tokens_total":   prompt,
	"stator_route_cached_tokens_total":   cached,
	"stator_request_answer_tokens_total": answer,
	"stator_route_bookings":              booked,
	"stator_route_queue_requests":        queued,
	"process_resident_memory_bytes":      resident,
}

// sum adds up the metrics that a point is made of. Labels such as worker and model are ignored, so that a point has the same size
// whatever the size of the fleet is.
func sum(at time.Time, families []*dto.MetricFamily) sums {
	s := sums{at: at, counts: map[string]float64{}, firstToken: buckets{}, wholeRequest: buckets{}}

	for _, family := range families {
		for _, m := range family.Metric {
			switch name := family.GetName(); name {
			case "stator_extproc_requests_total":
				s.counts[outcomeOf(m)] += value(m)
			case "stator_accesslog_requests_total":
				// The requests of all other outcomes have got an answer.
				if outcome := label(m, "outcome"); outcome == "failed" || outcome == "unserved" {
					s.counts[failed] += value(m)
				}
			case "stator_feed_ranks":
				if label(m, "state") == exact {
					s.counts[exact] += value(m)
				}
			case "stator_request_first_token_seconds":
				s.firstToken.add(m)
			case "stator_request_duration_seconds":
				s.wholeRequest.add(m)
			default:
				if to := counted[name]; to != "" {
					s.counts[to] += value(m)
				}
			}
		}
	}
	return s
}

// outcomeOf separates requests that got a worker from refused ones. Those that need none, or were cancelled, are neither.
func outcomeOf(m *dto.Metric) string {
	switch outcome := label(m, "outcome"); outcome {
	case picked:
		return picked
	case "local", "cancelled":
		return ""
	}
	return refused
}

// label returns the value of a label; empty if the metric does not have it.
func label(m *dto.Metric, name string) string {
	for _, l := range m.Label {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}

// value returns the value of a counter or a gauge; the other of the two is 0.
func value(m *dto.Metric) float64 { return m.GetCounter().GetValue() + m.GetGauge().GetValue() }

// add adds the buckets of one histogram, such as the one of a worker. All histograms of a metric have the same bounds.
func (b buckets) add(m *dto.Metric) {
	for _, bucket := range m.GetHistogram().GetBucket() {
		b[bucket.GetUpperBound()] += float64(bucket.GetCumulativeCount())
	}
	b[math.Inf(1)] += float64(m.GetHistogram().GetSampleCount())
}

// point returns the step between two sums. Counters that became smaller belong to a worker that is gone: their rate counts as 0.
func point(before, now *sums) Point {
	seconds := now.at.Sub(before.at).Seconds()
	rate := func(name string) float64 { return max(0, now.counts[name]-before.counts[name]) / seconds }
	first, whole := now.firstToken.since(before.firstToken), now.wholeRequest.since(before.wholeRequest)
	return Point{
		At: now.at, Picked: rate(picked), Refused: rate(refused), Failed: rate(failed), Retried: rate(retried), Prompt: rate(prompt),
		Cached: rate(cached), Answer: rate(answer), Booked: now.counts[booked], Queued: now.counts[queued],
		First50: first.quantile(0.5), First95: first.quantile(0.95), Request: whole.quantile(0.5),
		Exact: now.counts[exact], Resident: now.counts[resident],
	}
}

// since returns the counts of each bucket since an earlier time. Workers that are gone took their counts with them, so a
// difference may be negative:
// then it counts as none.
func (b buckets) since(before buckets) buckets {
	out := buckets{}
	for bound, n := range b {
		out[bound] = max(0, n-before[bound])
	}
	return out
}

// quantile returns the time below which a share of the counts are, interpolated within its bucket as Prometheus does.
func (b buckets) quantile(share float64) Seconds {
	var bounds []float64
	for bound := range b {
		bounds = append(bounds, bound)
	}
	slices.Sort(bounds)
	if len(bounds) < 2 || b[bounds[len(bounds)-1]] == 0 {
		return Seconds(math.NaN())
	}

	// The largest bound is infinite: it counts all requests.
	// Within a bucket the times are taken to be spread evenly.
	// The interpolation is linear.
	want := share * b[bounds[len(bounds)-1]]
	// below is the count up to from, the lower bound of the bucket in which the share is reached.
	below, from := 0.0, 0.0
	for _, bound := range bounds[:len(bounds)-1] {
		if n := b[bound]; n >= want && n > below {
			return Seconds(from + (bound-from)*(want-below)/(n-below))
		}
		below, from = max(below, b[bound]), bound
	}
	return Seconds(from) // it is above the largest bound
}
