package top

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/stator-project/stator/admin/history"
	"github.com/stator-project/stator/internal/decisionlog"
	"github.com/stator-project/stator/internal/metric"
	"github.com/stator-project/stator/internal/status"
)

const (
	// often is the time between two readings of workers and decisions, and seldom the time between two readings of everything else: the
	// router's page of metrics has megabytes in a large fleet.
	often  = 2 * time.Second
	seldom = 10 * time.Second
	// newest is the decisions that are read at once, and maxDecisions bounds those that are kept.
	newest       = 100
	maxDecisions = 1000
)

// Reader reads a router's admin pages, and keeps the counts from which it makes figures. It belongs to one goroutine, apart from
// Explain.
type Reader struct {
	Port status.Port

	decisions []decisionlog.Decision // the newest first
	sumsAt    time.Time              // of the last reading of the metrics
	sums      map[string]sums        // by worker
	figures   map[string]Figures     // by worker
	queue     []Waiting
	last      *history.Point
}

// sums are the router's counts of a worker's ended requests since its start.
type sums struct{ requests, prompt, cached, streams, firstToken, total, answer float64 }

// Read returns the state of the router. An error names the page that cannot be read.
func (r *Reader) Read(ctx context.Context, now time.Time) (Data, error) {
	ready, _, err := r.Port.Get(ctx, "/readyz")
	if err != nil {
		return Data{}, err
	}
	var fleet *struct{ Ranks []status.Rank }
	var fresh []decisionlog.Decision
	err = errors.Join(r.Port.Page(ctx, "/debug/fleet", &fleet), r.Port.Page(ctx, fmt.Sprintf("/debug/decisions?n=%d", newest), &fresh))
	if err != nil {
		return Data{}, err
	}
	if fleet == nil {
		return Data{}, errors.New("this process shows no fleet: name the admin port of a router")
	}
	r.keep(fresh)
	if now.Sub(r.sumsAt) >= seldom {
		if err := r.readSeldom(ctx, now); err != nil {
			return Data{}, err
		}
	}

	d := Data{At: now, Ready: readiness(ready), Decisions: r.decisions, Queue: r.queue, Last: r.last}
	for _, rank := range fleet.Ranks {
		d.Ranks = append(d.Ranks, Rank{rank, r.figures[rank.Worker]})
	}
	return d, nil
}

// readiness returns the text of /readyz in one line: ready, or why not.
func readiness(page []byte) string {
	text := strings.TrimSpace(string(page))
	if text == "ok" {
		return "ready"
	}
	return strings.TrimSpace(strings.TrimPrefix(text, "ok"))
}

// keep adds decisions to those of earlier readings. One that was read before, such as a queued one, is replaced.
func (r *Reader) keep(fresh []decisionlog.Decision) {
	isFresh := map[string]bool{}
	for i := range fresh {
		fresh[i].Candidates = nil // most of its bytes
		isFresh[fresh[i].ID] = true
	}
	for _, d := range r.decisions {
		if !isFresh[d.ID] && len(fresh) < maxDecisions {
			fresh = append(fresh, d)
		}
	}
	r.decisions = fresh
}

// readSeldom reads the queue, the history and the metrics.
func (r *Reader) readSeldom(ctx context.Context, now time.Time) error {
	var points []history.Point
	var queue []Waiting
	err := errors.Join(r.Port.Page(ctx, "/debug/history", &points), r.Port.Page(ctx, "/debug/queue", &queue))
	if err != nil {
		return err
	}
	r.queue, r.last = queue, nil
	if len(points) > 0 {
		r.last = &points[len(points)-1]
	}

	page, code, err := r.Port.Get(ctx, "/metrics")
	if err != nil {
		return err
	}
	if code != http.StatusOK {
		return fmt.Errorf("/metrics answers with status %d", code)
	}
	samples, err := metric.Read(bytes.NewReader(withoutBuckets(page)))
	if err != nil {
		return err
	}
	r.count(samples, now)
	return nil
}

// withoutBuckets keeps the lines of a page of metrics that figures of workers need. Most lines are buckets of histograms.
func withoutBuckets(page []byte) []byte {
	var kept []byte
	for line := range bytes.Lines(page) {
		name, _, _ := bytes.Cut(line, []byte("{"))
		isWhole := bytes.HasSuffix(line, []byte("\n")) // a very long page is cut off
		if isWhole && bytes.HasPrefix(name, []byte("stator_request_")) && !bytes.HasSuffix(name, []byte("_bucket")) {
			kept = append(kept, line...)
		}
	}
	return kept
}

// count makes the figures of workers from the metrics, and those before.
func (r *Reader) count(samples metric.Samples, now time.Time) {
	all := map[string]sums{}
	for i := range samples {
		s := &samples[i]
		worker := s.Labels["worker"]
		if worker == "" {
			continue
		}
		at := all[worker]
		switch s.Name {
		case "stator_request_duration_seconds_count":
			at.requests += s.Value
		case "stator_request_duration_seconds_sum":
			at.total += s.Value
		case "stator_request_first_token_seconds_count":
			at.streams += s.Value
		case "stator_request_first_token_seconds_sum":
			at.firstToken += s.Value
		case "stator_request_prompt_tokens_total":
			at.prompt += s.Value
		case "stator_request_cached_tokens_total":
			at.cached += s.Value
		case "stator_request_answer_tokens_total":
			at.answer += s.Value
		}
		all[worker] = at
	}

	r.figures = map[string]Figures{}
	for worker, s := range all {
		before := r.sums[worker]
		if before.requests > s.requests { // the router was started again
			before = sums{}
		}
		r.figures[worker] = figures(&before, &s, now.Sub(r.sumsAt), !r.sumsAt.IsZero())
	}
	r.sums, r.sumsAt = all, now
}

// figures returns averages of the requests between two readings. There is no rate without an earlier one.
func figures(before, now *sums, apart time.Duration, hasEarlier bool) Figures {
	f := Figures{}
	requests, streams := now.requests-before.requests, now.streams-before.streams
	if hasEarlier {
		f.Rate = new(requests / apart.Seconds())
	}
	if prompt := now.prompt - before.prompt; prompt > 0 {
		f.Cached = new((now.cached - before.cached) / prompt)
	}

	if streams <= 0 {
		return f
	}
	firstToken := now.firstToken - before.firstToken
	f.FirstToken = new(firstToken / streams)
	// The durations are those of all answers, so that they count only if all were streams. The first token of each is not a next one.
	if next := now.answer - before.answer - streams; next > 0 && streams == requests {
		f.NextToken = new((now.total - before.total - firstToken) / next)
	}
	return f
}

// Explain returns the text of a decision, or why there is none. It may run beside Read.
func (r *Reader) Explain(ctx context.Context, id string) string {
	text, _, err := r.Port.Get(ctx, "/debug/decisions/"+url.PathEscape(id))
	if err != nil {
		return "The decision cannot be read: " + err.Error()
	}
	return string(text)
}
