package sim

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/route/decision"
)

// Result is the result of a run. Its JSON keys are stable.
type Result struct {
	Requests  int `json:"requests"`
	Completed int `json:"completed"`
	Errors    int `json:"errors"`
	// Queued is the number of requests that waited in a router's queue.
	Queued   int     `json:"queued,omitempty"`
	Duration float64 `json:"duration_s"`
	// TTFT is the time to the first token, ITL the time between tokens, E2E the time of whole requests.
	TTFT Quantiles `json:"ttft_ms"`
	ITL  Quantiles `json:"itl_ms"`
	E2E  Quantiles `json:"e2e_ms"`
	// Transferred is the share of prompts that were computed by a prefill worker and transferred. Transfer is the
	// time from the end of their prefill until the worker that decodes has them.
	Transferred float64   `json:"transferred,omitempty"`
	Transfer    Quantiles `json:"transfer_ms,omitzero"`
	// Crossed is the share of these prompts that were transferred between nodes.
	Crossed float64 `json:"crossed,omitempty"`
	// Pulled is the share of prompts whose beginning was fetched from another worker's cache. Pull is the time of that.
	Pulled float64   `json:"pulled,omitempty"`
	Pull   Quantiles `json:"pull_ms,omitzero"`
	// OutputRate is tokens per second after the warm-up.
	OutputRate float64 `json:"output_tokens_per_s"`
	// PrefixReuse is cached prompt tokens divided by prompt tokens, as engines count them. Predicted is the
	// same as routers predicted it when they decided.
	PrefixReuse float64       `json:"prefix_reuse"`
	Predicted   float64       `json:"predicted_reuse"`
	PerWorker   []WorkerShare `json:"per_worker"`
	// SLAMisses counts the requests after the warm-up that exceeded a bound of Config.SLA, or failed. It is nil without one.
	SLAMisses *int `json:"sla_misses,omitempty"`
	// Curves are the distributions of the times.
	Curves Curves `json:"curves"`
	// GPUHours is the time of all engines' GPUs, from the beginning of an engine's start-up until it left the fleet, or the
	// run ended. It is 0 without Planning, and so are the next two.
	GPUHours float64 `json:"gpu_hours,omitempty"`
	// Replicas are the numbers of engines at the times when they changed: of engines that decode, or do both.
	// PrefillReplicas are the numbers of engines that only prefill.
	Replicas        []Replicas `json:"replicas,omitempty"`
	PrefillReplicas []Replicas `json:"prefill_replicas,omitempty"`
	// Programs are the sessions, with Config.ProgramRate; nil without.
	Programs *Programs `json:"programs,omitempty"`
	// Interrupted means that the run was stopped before its end. Requests that were running are neither
	// completed nor errors.
	Interrupted bool `json:"interrupted,omitempty"`
}

// Curves are distributions in milliseconds: the quantiles 0, 0.02, …, 1. A curve is empty if nothing was
// measured.
type Curves struct {
	TTFT []float64 `json:"ttft_ms"`
	ITL  []float64 `json:"itl_ms"`
	E2E  []float64 `json:"e2e_ms"`
}

// curvePoints is the number of quantiles of a curve.
const curvePoints = 51

// Quantiles summarizes durations, in milliseconds.
type Quantiles struct {
	Mean float64 `json:"mean"`
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P99  float64 `json:"p99"`
}

// WorkerShare is the work of one worker.
type WorkerShare struct {
	// Role is empty for a worker that prefills and decodes.
	Role         string  `json:"role,omitempty"`
	Requests     int     `json:"requests"`
	PromptTokens int     `json:"prompt_tokens"`
	CachedTokens int     `json:"cached_tokens"`
	OutputTokens int     `json:"output_tokens"`
	Preemptions  uint64  `json:"preemptions"`
	PrefixReuse  float64 `json:"prefix_reuse"`
}

// tally has the counts of a run so far. Times and tokens count only requests that arrived after the warm-up.
type tally struct {
	warmup                     time.Duration
	arrived, completed, errors int
	queued                     int
	ttft, e2e                  []float64
	gaps                       histogram
	transfers, pulls           []float64 // milliseconds
	crossed                    int       // of the transfers
	prompts                    int
	prompt, cached             int
	promptDecided, predicted   int
	output                     int
	workers                    []WorkerShare
	lastEnd                    time.Duration
	interrupted                bool
	sla                        SLA
	misses                     int
}

func (t *tally) init(cfg *Config) {
	t.workers = make([]WorkerShare, cfg.engines())
	t.warmup = cfg.Warmup
	t.sla = cfg.SLA
}

// isMeasured reports whether a job's times and tokens count.
func (t *tally) isMeasured(j *job) bool { return j.at >= t.warmup }

// decided counts a request on the worker that decodes it. d is the decision about its prompt; nil if asked counts that.
func (t *tally) decided(j *job, d *decision.Decision) {
	t.workers[j.worker.number].Requests++
	t.predict(j, d)
}

// asked counts a prompt on a worker that only prefills.
func (t *tally) asked(j *job, d *decision.Decision) {
	t.workers[j.handoff.source.number].Requests++
	t.predict(j, d)
}

// predict counts how much of a prompt is cached by the decision about it.
func (t *tally) predict(j *job, d *decision.Decision) {
	if d == nil || !t.isMeasured(j) {
		return
	}
	t.promptDecided += d.PromptTokens
	t.predicted += d.Cached
}

// first counts a first token.
func (t *tally) first(j *job, now time.Duration) {
	j.first = now
	if t.isMeasured(j) {
		t.ttft = append(t.ttft, ms(now-j.at))
	}
}

// found counts a prompt, and its cached tokens, on the worker that computed it.
func (t *tally) found(j *job, on *worker, cached int) {
	if !t.isMeasured(j) {
		return
	}
	t.prompts++
	n := len(j.engine.Prompt)
	t.prompt += n
	t.cached += cached
	w := &t.workers[on.number]
	w.PromptTokens += n
	w.CachedTokens += cached
}

// transferred counts a prompt that reached the worker that decodes it, some time after its prefill ended.
func (t *tally) transferred(j *job, took time.Duration) {
	if t.isMeasured(j) {
		t.transfers = append(t.transfers, ms(took))
		if !j.handoff.transfer.inNode() {
			t.crossed++
		}
	}
}

// pulled counts a prompt whose beginning was fetched from another worker's cache.
func (t *tally) pulled(j *job, took time.Duration) {
	if t.isMeasured(j) {
		t.pulls = append(t.pulls, ms(took))
	}
}

// countGap counts the time between two tokens.
func (t *tally) countGap(j *job, d time.Duration) {
	if t.isMeasured(j) {
		t.gaps.add(ms(d))
	}
}

// countEnd counts a completed request.
func (t *tally) countEnd(j *job, now time.Duration, tokens int) {
	t.completed++
	t.lastEnd = now
	if t.isMeasured(j) {
		t.e2e = append(t.e2e, ms(now-j.at))
		t.output += tokens
		t.workers[j.worker.number].OutputTokens += tokens
		if t.sla.misses(j.at, j.first, now, tokens) {
			t.misses++
		}
	}
}

// fail counts a request that failed.
func (t *tally) fail(j *job) {
	t.errors++
	if t.isMeasured(j) {
		t.misses++
	}
}

// result summarizes the run.
func (r *run) result() *Result {
	t := &r.tally
	out := &Result{
		Requests: t.arrived, Completed: t.completed, Errors: t.errors, Queued: t.queued, Duration: round(t.lastEnd.Seconds()),
		TTFT: summary(t.ttft), E2E: summary(t.e2e), ITL: t.gaps.summary(),
		Transferred: ratio(len(t.transfers), t.prompts), Transfer: summary(t.transfers),
		Crossed: ratio(t.crossed, len(t.transfers)),
		Pulled:  ratio(len(t.pulls), t.arrived), Pull: summary(t.pulls),
		PrefixReuse: ratio(t.cached, t.prompt), Predicted: ratio(t.predicted, t.promptDecided), PerWorker: t.workers,
	}

	out.Curves = Curves{TTFT: curve(t.ttft), ITL: t.gaps.curve(), E2E: curve(t.e2e)}
	out.Interrupted = t.interrupted
	out.Programs = r.programs.result()
	if t.sla != (SLA{}) {
		out.SLAMisses = &t.misses
	}
	if out.Duration > t.warmup.Seconds() {
		out.OutputRate = round(float64(t.output) / (out.Duration - t.warmup.Seconds()))
	}
	r.planned(out)

	for i, w := range r.workers {
		if w.role != fleet.Aggregated {
			out.PerWorker[i].Role = w.role.String()
		}
		out.PerWorker[i].Preemptions = w.stats().Preemptions
		out.PerWorker[i].PrefixReuse = ratio(out.PerWorker[i].CachedTokens, out.PerWorker[i].PromptTokens)
	}
	return out
}

// Imbalance returns the highest load of a worker divided by the mean of its role. The load is the prompt tokens
// that it computed and the tokens that it emitted.
func (r *Result) Imbalance() float64 {
	most := 0.0
	for _, share := range r.Shares() {
		most = max(most, share)
	}
	return most
}

// Shares returns the load of each worker divided by the mean of its role, as for [Result.Imbalance]. It is 0
// if there was no load.
func (r *Result) Shares() []float64 {
	out := make([]float64, len(r.PerWorker))
	sum := map[string]float64{} // by role
	workers := map[string]float64{}
	for i, w := range r.PerWorker {
		out[i] = float64(w.PromptTokens - w.CachedTokens + w.OutputTokens)
		sum[w.Role] += out[i]
		workers[w.Role]++
	}
	for i, w := range r.PerWorker {
		if sum[w.Role] > 0 {
			out[i] /= sum[w.Role] / workers[w.Role]
		}
	}
	return out
}

// String returns the result as a table.
func (r *Result) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d requests, %d completed, %d errors in %.1f s; %.1f output tokens/s\n", r.Requests, r.Completed, r.Errors,
		r.Duration, r.OutputRate)
	if r.Queued > 0 {
		fmt.Fprintf(&b, "%d waited in a router's queue\n", r.Queued)
	}
	if p := r.Programs; p != nil {
		fmt.Fprintf(&b, "%d programs completed, %d lost; time mean %.1f s, p50 %.1f, p90 %.1f, p99 %.1f; fairness %.3f\n",
			p.Completed, p.Lost, p.Time.Mean, p.Time.P50, p.Time.P90, p.Time.P99, p.Fairness)
	}
	fmt.Fprintf(&b, "prefix reuse %.4f (the router predicted %.4f); most loaded worker %.2f x the mean\n\n", r.PrefixReuse, r.Predicted,
		r.Imbalance())
	if r.Transferred > 0 {
		fmt.Fprintf(&b, "%.1f %% of the prompts were transferred, in %.1f ms each", 100*r.Transferred, r.Transfer.Mean)
		if r.Crossed > 0 {
			fmt.Fprintf(&b, ", %.1f %% of these between nodes", 100*r.Crossed)
		}
		fmt.Fprint(&b, "\n\n")
	}
	if r.Pulled > 0 {
		fmt.Fprintf(&b, "%.1f %% of the prompts were fetched in part from another worker, in %.1f ms each\n\n", 100*r.Pulled, r.Pull.Mean)
	}
	r.writeSLA(&b)
	r.writePlanned(&b)
	fmt.Fprintf(&b, "%-6s %10s %10s %10s %10s\n", "ms", "mean", "p50", "p90", "p99")
	for _, row := range []struct {
		name string
		t    Quantiles
	}{{"TTFT", r.TTFT}, {"ITL", r.ITL}, {"E2E", r.E2E}} {
		fmt.Fprintf(&b, "%-6s %10.1f %10.1f %10.1f %10.1f\n", row.name, row.t.Mean, row.t.P50, row.t.P90, row.t.P99)
	}

	fmt.Fprintf(&b, "\n%-12s %10s %14s %10s %14s %12s\n", "worker", "requests", "prompt tokens", "reuse", "output tokens", "preemptions")
	for i, w := range r.PerWorker {
		fmt.Fprintf(&b, "%-12s %10d %14d %10.4f %14d %12d\n", strings.TrimSpace(fmt.Sprint(i, " ", w.Role)), w.Requests, w.PromptTokens,
			w.PrefixReuse, w.OutputTokens, w.Preemptions)
	}
	return b.String()
}

func ratio(part, whole int) float64 {
	if whole == 0 {
		return 0
	}
	return math.Round(float64(part)/float64(whole)*1e6) / 1e6
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// round keeps microseconds. Further digits have no meaning, and they differ between processors.
func round(v float64) float64 { return math.Round(v*1000) / 1000 }

// summary returns the quantiles of values, which it sorts.
func summary(values []float64) Quantiles {
	if len(values) == 0 {
		return Quantiles{}
	}
	slices.Sort(values)
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	at := func(q float64) float64 { return round(values[min(len(values)-1, int(q*float64(len(values))))]) }
	return Quantiles{round(sum / float64(len(values))), at(0.5), at(0.9), at(0.99)}
}

// histogram counts milliseconds in buckets whose width is 1/64 of their value. A run has many millions of
// gaps between tokens, too many to keep them all.
type histogram struct {
	counts [64 * bucketsPerOctave]uint64 // from 2^smallest ms
	n      uint64
	sum    float64
}

const (
	// smallest is the exponent of the first bucket: 2^-20 ms.
	smallest = -20
	// bucketsPerOctave is the number of buckets between a value and its double.
	bucketsPerOctave = 1 << bucketBits
	bucketBits       = 6
)

func (h *histogram) add(v float64) {
	h.n++
	h.sum += v
	// v = (1 + fraction) · 2^exponent, by the layout of a float64. The first bits of the fraction number the bucket.
	bits := math.Float64bits(v)
	i := 0
	if v > 0 {
		exponent := int(bits>>52) - 1023
		fraction := bits & (1<<52 - 1)
		i = (exponent+1-smallest)*bucketsPerOctave + int(fraction>>(52-bucketBits))
	}
	h.counts[min(max(i, 0), len(h.counts)-1)]++
}

// quantile returns the middle of the bucket that has the quantile q.
func (h *histogram) quantile(q float64) float64 {
	left := uint64(q * float64(h.n))
	for i, n := range h.counts {
		if left < n {
			return round(math.Ldexp(0.5+(float64(i%bucketsPerOctave)+0.5)/(2*bucketsPerOctave), i/bucketsPerOctave+smallest))
		}
		left -= n
	}
	return 0
}

// curve returns curvePoints quantiles of sorted values, from the least to the greatest.
func curve(sorted []float64) []float64 {
	if len(sorted) == 0 {
		return []float64{}
	}
	out := make([]float64, curvePoints)
	for i := range out {
		out[i] = round(sorted[i*(len(sorted)-1)/(curvePoints-1)])
	}
	return out
}

func (h *histogram) curve() []float64 {
	if h.n == 0 {
		return []float64{}
	}
	out := make([]float64, curvePoints)
	for i := range out {
		out[i] = h.quantile(float64(i) / (curvePoints - 1) * float64(h.n-1) / float64(h.n))
	}
	return out
}

func (h *histogram) summary() Quantiles {
	if h.n == 0 {
		return Quantiles{}
	}
	return Quantiles{round(h.sum / float64(h.n)), h.quantile(0.5), h.quantile(0.9), h.quantile(0.99)}
}
