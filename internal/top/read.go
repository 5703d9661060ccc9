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
// explain.
type Reader struct {
	Port status.Port

	decisions []decisionlog.Decision // the newest first
	sumsAt    time.Time              // of the last reading of the metrics
	sums      map[string]sums        // by worker
	ended     map[string]sums        // by worker, between the last two readings of the metrics
	hasRates  bool                   // there were two
	queue     []Waiting
	last      *history.Point
}

// sums are the router's counts of a worker's ended requests. rate is in requests a second, of those between two readings alone.
type sums struct{ requests, prompt, cached, streams, firstToken, total, answer, rate float64 }

func (s sums) plus(o sums) sums {
	return sums{
		s.requests + o.requests, s.prompt + o.prompt, s.cached + o.cached, s.streams + o.streams, s.firstToken + o.firstToken,
		s.total + o.total, s.answer + o.answer, s.rate + o.rate,
	}
}

// since returns the counts of the requests after before, which were read so long ago.
func (s sums) since(before sums, apart time.Duration) sums {
	if before.requests > s.requests { // the router was started again
		before = sums{}
	}
	return sums{
		s.requests - before.requests, s.prompt - before.prompt, s.cached - before.cached, s.streams - before.streams,
		s.firstToken - before.firstToken, s.total - before.total, s.answer - before.answer,
		(s.requests - before.requests) / apart.Seconds(),
	}
}

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
		d.Ranks = append(d.Ranks, Rank{Rank: rank})
	}
	d.setFigures(r.ended, r.hasRates)
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

	r.ended, r.hasRates = map[string]sums{}, !r.sumsAt.IsZero()
	for worker, s := range all {
		r.ended[worker] = s.since(r.sums[worker], now.Sub(r.sumsAt))
	}
	r.sums, r.sumsAt = all, now
}

// setFigures sets the figures of all workers with counts.
func (d *Data) setFigures(counts map[string]sums, hasRates bool) {
	for i := range d.Ranks {
		if s, ok := counts[d.Ranks[i].Worker]; ok {
			d.Ranks[i].Figures = s.figures(hasRates)
		}
	}
}

// figures returns averages of ended requests. There is no rate without two readings.
func (s sums) figures(hasRates bool) Figures {
	f := Figures{}
	if hasRates {
		f.Rate = new(s.rate)
	}
	if s.prompt > 0 {
		f.Cached = new(s.cached / s.prompt)
	}
	if s.streams <= 0 {
		return f
	}

	f.FirstToken = new(s.firstToken / s.streams)
	// The durations are those of all answers, so that they count only if all were streams. The first token of each is not a next one.
	if next := s.answer - s.streams; next > 0 && s.streams == s.requests {
		f.NextToken = new((s.total - s.firstToken) / next)
	}
	return f
}

// explain returns the text of a decision, or why there is none, and the status of the answer.
func (r *Reader) explain(ctx context.Context, id string) (text string, status int) {
	page, status, err := r.Port.Get(ctx, "/debug/decisions/"+url.PathEscape(id))
	if err != nil {
		return "The decision cannot be read: " + err.Error(), 0
	}
	return string(page), status
}
