package sim

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/stator-project/stator/internal/fleet"
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
	Transfers
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
	Planned
	// Programs are the sessions, with Config.ProgramRate; nil without.
	Programs *Programs `json:"programs,omitempty"`
	// Interrupted means that the run was stopped before its end. Requests that were running are neither
	// completed nor errors.
	Interrupted bool `json:"interrupted,omitempty"`
}

// Transfers are the prompts whose blocks came from another worker.
type Transfers struct {
	// Transferred is the share of prompts that were computed by a prefill worker and transferred. Transfer is the
	// time from the end of their prefill until the worker that decodes has them.
	Transferred float64   `json:"transferred,omitempty"`
	Transfer    Quantiles `json:"transfer_ms,omitzero"`
	// Crossed is the share of these prompts that were transferred between nodes.
	Crossed float64 `json:"crossed,omitempty"`
	// Pulled is the share of prompts whose beginning was fetched from another worker's cache. Pull is the time of that.
	Pulled float64   `json:"pulled,omitempty"`
	Pull   Quantiles `json:"pull_ms,omitzero"`
}

// Planned is the fleet that plans made. It is zero without Planning.
type Planned struct {
	// GPUHours is the time of all engines' GPUs, from the beginning of an engine's start-up until it left the fleet, or the
	// run ended.
	GPUHours float64 `json:"gpu_hours,omitempty"`
	// Replicas are the numbers of engines at the times when they changed: of engines that decode, or do both.
	// PrefillReplicas are the numbers of engines that only prefill.
	Replicas        []Replicas `json:"replicas,omitempty"`
	PrefillReplicas []Replicas `json:"prefill_replicas,omitempty"`
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

// result summarizes the run.
func (r *run) result() *Result {
	t := &r.tally
	out := &Result{
		Requests: t.arrived, Completed: t.completed, Errors: t.errors, Queued: t.queued, Duration: round(t.lastEnd.Seconds()),
		TTFT: summary(t.ttft), E2E: summary(t.e2e), ITL: t.gaps.summary(),
		Transfers: Transfers{
			Transferred: ratio(len(t.transfers), t.reuse.prompts), Transfer: summary(t.transfers),
			Crossed: ratio(t.crossed, len(t.transfers)),
			Pulled:  ratio(len(t.pulls), t.arrived), Pull: summary(t.pulls),
		},
		PrefixReuse: ratio(t.reuse.cached, t.reuse.prompt), Predicted: ratio(t.reuse.predicted, t.reuse.promptDecided),
		PerWorker: t.workers,
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
