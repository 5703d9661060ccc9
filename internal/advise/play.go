package advise

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/plan/capacity"
	"github.com/stator-project/stator/internal/plan/propose"
	"github.com/stator-project/stator/internal/sim"
	"github.com/stator-project/stator/internal/sim/engine"
	"github.com/stator-project/stator/internal/trace"
	"github.com/stator-project/stator/internal/tracefile"
)

// tracedDemand is the demand of a trace.
type tracedDemand struct {
	shape capacity.Shape
	peak  float64 // requests per second
}

// peakWindow is the time in which arrivals are counted, and peakQuantile the share of those times that the rate is to cover.
const (
	peakWindow   = time.Minute
	peakQuantile = 0.95
)

// openTrace returns the first arrivals of the trace.
func (p *Options) openTrace() (next trace.Source, end func(), err error) {
	options := tracefile.Options{Path: p.Trace, MooncakeBlock: trace.MooncakeBlock, AgentModel: "builtin:sim"}
	opened, err := tracefile.Open(context.Background(), options)
	if err != nil {
		return nil, nil, err
	}
	return opened.Source(func(s trace.Source) trace.Source { return trace.Take(p.Rows, s) }), opened.Close, nil
}

// readTrace summarizes the trace.
func (p *Options) readTrace() (*tracedDemand, error) {
	next, end, err := p.openTrace()
	if err != nil {
		return nil, err
	}
	defer end()

	var prompts, answers, times []float64
	var tokens []uint32
	for {
		a, ok, err := next()
		if err != nil {
			return nil, err
		}
		if !ok {
			break
		}
		tokens = a.Prompt.Append(tokens[:0])
		prompts = append(prompts, float64(len(tokens)))
		answers = append(answers, float64(a.Output))
		times = append(times, a.At.Seconds())
	}
	if len(times) < 2 {
		return nil, fmt.Errorf("%s has %d requests: a plan needs 2 at least", p.Trace, len(times))
	}

	p.requests = len(times)
	d := &tracedDemand{peak: peakRate(times)}
	d.shape.Prompt, d.shape.PromptSpread = meanSpread(prompts)
	d.shape.Answer, d.shape.AnswerSpread = meanSpread(answers)
	return d, nil
}

// meanSpread returns the mean of values, and their standard deviation divided by it.
func meanSpread(values []float64) (mean, spread float64) {
	squares := 0.0
	for _, v := range values {
		mean += v / float64(len(values))
		squares += v * v / float64(len(values))
	}
	return mean, math.Sqrt(max(0, squares-mean*mean)) / mean
}

// peakRate returns a high quantile of the rates in windows of arrivals, whose times are in seconds.
func peakRate(times []float64) float64 {
	span := times[len(times)-1] - times[0]
	window := min(peakWindow.Seconds(), max(span, 1e-3))
	counts := make([]float64, 1+int(span/window))
	for _, at := range times {
		counts[int((at-times[0])/window)]++
	}
	if len(counts) > 2 {
		counts = counts[:len(counts)-1] // the last window is cut
	}
	slices.Sort(counts)
	return counts[int(peakQuantile*float64(len(counts)-1))] / window
}

// The generated arrivals of a simulation: of planPlay, at most planRequests.
const (
	planPlay     = 2 * time.Minute
	planRequests = 12_000
	planWarmup   = 0.2 // share of the time
)

// played is the simulator's result for a proposal. Latencies are in milliseconds, at the quantile of the targets; the ITL is the mean
// of each request.
type played struct {
	Requests int     `json:"requests"`
	Rate     float64 `json:"rate"`
	TTFT     float64 `json:"ttft_ms"`
	ITL      float64 `json:"itl_ms"`
	E2E      float64 `json:"e2e_ms"`
	// Missed is the share of requests that missed a target or failed, after the warm-up. Reuse is the share of prompts found in caches.
	Missed float64 `json:"missed"`
	Reuse  float64 `json:"prefix_reuse"`
}

// play plays the proposal in the simulator, with the arrivals of the trace or with generated ones. If the rate is not asked for, it is
// lowered until as many requests are within the targets as should be.
func (p *Options) play(ctx context.Context, a *Answer, f *propose.Proposal) (out *played, err error) {
	rate := cmp.Or(a.Question.Rate, f.Rate)
	for _, share := range []float64{1, 0.97, 0.94, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5} {
		out, err = p.playAt(ctx, a, f, share*rate)
		if err != nil || p.IsTraced || p.Rate > 0 || out.Missed <= 1-a.Question.Targets.Quantile {
			return out, err
		}
	}
	return out, nil
}

// playAt plays the proposal at a rate, which a trace determines itself.
func (p *Options) playAt(ctx context.Context, a *Answer, f *propose.Proposal, rate float64) (*played, error) {
	cfg := a.simulation(f)
	cfg.ArrivalSpeedup = a.speedup
	cfg.Stopped = func() bool { return ctx.Err() != nil }
	var ended []sim.Outcome
	next, requests, end, err := p.arrivals(&cfg, rate)
	if err != nil {
		return nil, err
	}
	defer end()
	cfg.Ended = func(o sim.Outcome) {
		ended = append(ended, o)
		if p.Show != nil {
			p.Show(float64(len(ended)) / float64(requests))
		}
	}

	r, err := sim.Run(cfg, next)
	if err != nil {
		return nil, err
	}
	if r.Interrupted {
		return nil, fmt.Errorf("play the proposal: %w", ctx.Err())
	}
	return a.summarize(r, ended, cfg.Warmup), nil
}

// arrivals returns the arrivals to play and their number, and sets the warm-up of generated arrivals.
func (p *Options) arrivals(cfg *sim.Config, rate float64) (next trace.Source, n int, end func(), err error) {
	if p.IsTraced {
		next, end, err = p.openTrace()
		return next, p.requests, end, err
	}
	n = min(planRequests, max(200, int(rate*planPlay.Seconds())))
	cfg.Warmup = time.Duration(planWarmup * float64(n) / rate * float64(time.Second))
	next, err = trace.Generated{
		Requests: n, Rate: rate, Input: int(p.ISL), Output: int(p.OSL), Spread: p.Spread, PrefixShare: p.Cached,
	}.Source()
	return next, n, func() {}, err
}

// summarize returns the figures of the requests that arrived after the warm-up.
func (a *Answer) summarize(r *sim.Result, ended []sim.Outcome, warmup time.Duration) *played {
	t := &a.Question.Targets
	var ttft, itl, e2e []float64
	missed, counted := 0, 0
	last := time.Duration(0)
	for _, o := range ended {
		last = max(last, o.At)
		if o.At < warmup {
			continue
		}
		counted++
		l := capacity.Latency{TTFT: o.First - o.At, E2E: o.End - o.At, ITL: (o.End - o.First) / time.Duration(max(1, o.Output-1))}
		if o.Failed || !t.Met(l) {
			missed++
		}
		if !o.Failed {
			ttft = append(ttft, ms(l.TTFT))
			itl = append(itl, ms(l.ITL))
			e2e = append(e2e, ms(l.E2E))
		}
	}

	return &played{
		Requests: r.Requests, Rate: float64(r.Requests) / max(last.Seconds(), 1e-3), Reuse: r.PrefixReuse,
		Missed: float64(missed) / float64(max(1, counted)), TTFT: atQuantile(ttft, t.Quantile), ITL: atQuantile(itl, t.Quantile),
		E2E: atQuantile(e2e, t.Quantile),
	}
}

// atQuantile returns a quantile of values, which it sorts.
func atQuantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return 0
	}
	slices.Sort(values)
	return values[int(q*float64(len(values)-1))]
}

// simulation returns the fleet of a proposal.
func (a *Answer) simulation(f *propose.Proposal) sim.Config {
	cfg := sim.Config{Transfer: sim.Transfer{TokenBytes: int(a.tokenBytes)}}
	for _, pool := range f.Pools {
		e := simulatedEngine(&a.Question, &pool)
		if pool.Role == fleet.Prefill {
			cfg.Prefill, cfg.PrefillGPUs = pool.Replicas, pool.Engine.GPUs
			cfg.PrefillEngine, cfg.PrefillAt = &e, "remote"
			continue
		}
		cfg.Workers, cfg.GPUs = pool.Replicas, pool.Engine.GPUs
		cfg.Engine = e
	}
	return cfg
}

// simulatedEngine returns an engine of a pool.
func simulatedEngine(q *propose.Question, pool *propose.Pool) engine.Config {
	const blockSize = 16
	return engine.Config{
		Timing: pool.Engine.Timing, BlockSize: blockSize, Blocks: max(1, pool.Engine.KVTokens/blockSize), MaxNumSeqs: q.Seqs(pool),
		MaxNumBatchedTokens: pool.Engine.MaxBatchedTokens,
	}
}
