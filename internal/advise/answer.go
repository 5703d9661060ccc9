package advise

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/stator-project/stator/internal/engines"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/hub"
	"github.com/stator-project/stator/internal/modelfile"
	"github.com/stator-project/stator/internal/plan/capacity"
	"github.com/stator-project/stator/internal/plan/propose"
)

// Answer is a question with its proposals, the best first.
type Answer struct {
	Question   propose.Question
	list       []propose.Proposal
	Deployment propose.Deployment
	tokenBytes float64 // of a token's KV cache

	simulated *played // nil where nothing was played
	// note is about a proposal that the simulation moved to the front. speedup divides the times between a trace's arrivals.
	note    string
	speedup float64
	// beside is the simulation's result for the best proposal of the other kind; empty if it was not played.
	beside string
}

// Best returns the proposal.
func (a *Answer) Best() *propose.Proposal { return &a.list[0] }

// The transfer of a prompt: the simulator's defaults.
const (
	planTransferBase  = 3 * time.Millisecond
	planNodeBandwidth = 80e9
	planTokenBytes    = 131072
	planStartUp       = 2 * time.Minute
)

// Answer finds the proposals and plays the best one.
func (p *Options) Answer(ctx context.Context) (*Answer, error) {
	var traced *tracedDemand
	if p.IsTraced {
		var err error
		traced, err = p.readTrace()
		if err != nil {
			return nil, err
		}
		p.ISL, p.OSL = traced.shape.Prompt, traced.shape.Answer
	}
	m, err := p.readPlanModel(ctx)
	if err != nil {
		return nil, err
	}
	a := &Answer{tokenBytes: cmp.Or(m.weights.KVBytes, planTokenBytes), Deployment: p.deployment(&m)}
	a.Question = p.question(traced)
	a.Question.TransferToken = time.Duration(a.tokenBytes / planNodeBandwidth * float64(time.Second))
	a.Question.Engines, err = p.engines(&m)
	if err != nil {
		return nil, err
	}

	if p.IsTraced {
		a.speedup = a.Question.Rate / traced.peak
	}
	if err := a.propose(); err != nil || !p.Simulate {
		return a, err
	}
	if p.IsTraced && !p.CachedGiven {
		// Prompts of a trace share beginnings, so engines compute less than all of them.
		played, err := p.play(ctx, a, a.Best())
		if err != nil {
			return nil, err
		}
		a.Question.Shape.Cached = played.Reuse
		if err := a.propose(); err != nil {
			return nil, err
		}
	}
	return a, p.confirm(ctx, a)
}

// mostPlayed bounds the proposals that are played.
const mostPlayed = 4

// confirm plays proposals, and puts that one first which the simulation confirms: of those for a rate, the first that meets the targets
// there; otherwise the best ones with and without separate roles are compared by the rates that the simulation allows.
func (p *Options) confirm(ctx context.Context, a *Answer) error {
	chosen := -1
	var best *played
	for i, played := range a.candidates() {
		r, err := p.play(ctx, a, &a.list[played])
		if err != nil {
			return err
		}
		if i == 0 {
			a.simulated = r
		}
		ok := r.Missed <= 1-a.Question.Targets.Quantile
		if i > 0 && a.Question.Rate == 0 {
			a.beside = fmt.Sprintf("%s: %.1f/s, with %.1f %% misses.", &a.list[played], r.Rate, 100*r.Missed)
		}
		if ok && (best == nil || r.Rate > clearlyMore*best.Rate) {
			chosen, best = played, r
		}
		if ok && a.Question.Rate > 0 {
			break
		}
	}

	if chosen > 0 {
		a.beside = ""
		first := a.list[0]
		a.note = fmt.Sprintf("The estimate prefers %s, with which the simulation has %.1f requests/s and %.1f %% misses.", &first,
			a.simulated.Rate, 100*a.simulated.Missed)
		a.simulated = best
		moved := a.list[chosen]
		copy(a.list[1:chosen+1], a.list[:chosen])
		a.list[0] = moved
	}
	return nil
}

// clearlyMore is by which factor a later candidate must serve more in the simulation.
const clearlyMore = 1.03

// candidates returns the places of the proposals to play.
func (a *Answer) candidates() (out []int) {
	kinds := map[int]bool{}
	for i := range a.list {
		roles := len(a.list[i].Pools)
		if !a.list[i].Met || len(out) == mostPlayed || a.Question.Rate == 0 && kinds[roles] {
			continue
		}
		kinds[roles] = true
		out = append(out, i)
	}
	return out
}

// propose finds the proposals.
func (a *Answer) propose() error {
	a.list = propose.Propose(a.Question)
	if len(a.list) == 0 {
		return errors.New("no engine fits on the GPUs: use more GPUs, or smaller weights with --dtype")
	}
	return nil
}

// question returns the question that the flags and the trace ask.
func (p *Options) question(traced *tracedDemand) propose.Question {
	spread := p.Spread / math.Sqrt(3) // of lengths that are drawn evenly
	q := propose.Question{
		Shape:   capacity.Shape{Prompt: p.ISL, Answer: p.OSL, PromptSpread: spread, AnswerSpread: spread, Cached: p.Cached},
		Targets: p.Targets, Rate: p.Rate, GPUs: p.GPUs, TransferBase: planTransferBase,
	}
	if traced != nil {
		q.Shape = traced.shape
		q.Shape.Cached = p.Cached
		q.Rate = cmp.Or(p.Rate, traced.peak)
	}
	return q
}

// deployment returns the parts of a configuration besides the fleet.
func (p *Options) deployment(m *model) propose.Deployment {
	d := propose.Deployment{
		Model: p.Model, Path: p.Model, Engine: p.Engine, GPU: m.gpu.Name, Quantization: m.quantize, Context: m.weights.Context,
		StartUp: planStartUp, ProfileGPUs: p.ProfileGPUs,
	}
	if p.Engine == engines.Sim.Name {
		d.Path, d.StartUp = "builtin:sim", time.Second
	} else if hub.IsRef(p.Model) {
		d.Model = modelfile.Name(p.Model)
	} else if full, err := filepath.Abs(p.Model); err == nil && isFolder(p.Model) {
		d.Path, d.Model = full, filepath.Base(full)
	}
	if p.Output != "" {
		d.Target = func(role fleet.Role) string { return p.target(d.Model, role) }
	}
	if p.Profile != "" {
		d.Profile = p.Profile
		if full, err := filepath.Abs(p.Profile); err == nil {
			d.Profile = full
		}
	}
	return d
}

func isFolder(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// runnersUp is the number of proposals that are printed.
const runnersUp = 8

// Print writes the answer as text.
func (a *Answer) Print(w io.Writer, p *Options) {
	q, s := &a.Question, &a.Question.Shape
	fmt.Fprintf(w, "%s on %d × %s: prompts of %.0f tokens, %.0f %% cached, answers of %.0f.\n", a.Deployment.Model, p.GPUs,
		cmp.Or(a.Deployment.GPU, "GPU"), s.Prompt, 100*s.Cached, s.Answer)
	fmt.Fprintf(w, "Targets for %.4g %% of requests: %s.\n\n", 100*q.Targets.Quantile, targetsText(&q.Targets))
	propose.Write(w, a.list, runnersUp)

	best := a.Best()
	fmt.Fprintf(w, "\nProposed: %s. %s\n", best, a.Why())
	if !best.Met {
		return
	}
	doubt := 0.0
	for _, pool := range best.Pools {
		doubt = max(doubt, pool.Engine.Doubt)
	}
	fmt.Fprintf(w, "Times of engines may be off by %.0f %%: if they are so much longer, it serves %.1f requests/s.\n", 100*doubt,
		best.SlowRate)
	if a.simulated != nil {
		fmt.Fprintf(w, "\n%s", a.compare())
		if a.beside != "" {
			fmt.Fprintf(w, "Simulated with %s\n", a.beside)
		}
	}
	if p.Out != "" {
		fmt.Fprintf(w, "\nWrote %s: `stator validate --config %s` checks it, and `stator up --config %s` starts it.\n", p.Out, p.Out, p.Out)
	}
}

// Why explains the proposal.
func (a *Answer) Why() string { return cmp.Or(a.note, propose.Why(a.Question, a.list)) }

// targetsText lists the targets.
func targetsText(t *capacity.Targets) string {
	var parts []string
	for _, x := range []struct {
		name string
		v    time.Duration
	}{{"TTFT", t.TTFT}, {"ITL", t.ITL}, {"E2E", t.E2E}} {
		if x.v > 0 {
			parts = append(parts, fmt.Sprint(x.name, " ", x.v))
		}
	}
	return cmp.Or(strings.Join(parts, ", "), "none")
}

// compare prints the predicted latencies beside the simulated ones.
func (a *Answer) compare() string {
	var b strings.Builder
	r, q := a.simulated, &a.Question
	l := a.Best().Latency
	fmt.Fprintf(&b, "Simulated with %d requests, %.1f/s:\n", r.Requests, r.Rate)
	for _, x := range []struct {
		name              string
		simulated         float64
		predicted, target time.Duration
	}{{"TTFT", r.TTFT, l.TTFT, q.Targets.TTFT}, {"ITL", r.ITL, l.ITL, q.Targets.ITL}, {"E2E", r.E2E, l.E2E, q.Targets.E2E}} {
		fmt.Fprintf(&b, "  %-4s  predicted %8.1f ms  simulated %8.1f ms", x.name, ms(x.predicted), x.simulated)
		if x.target > 0 {
			fmt.Fprintf(&b, "  target %v", x.target)
		}
		b.WriteByte('\n')
	}
	fmt.Fprintf(&b, "  %.1f %% of the requests missed a target; %.1f %% may\n", 100*r.Missed, 100*(1-q.Targets.Quantile))
	return b.String()
}

func ms(d time.Duration) float64 { return d.Seconds() * 1e3 }
