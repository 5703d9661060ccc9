package sim

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/stator-project/stator/internal/trace"
)

// programs plays the sessions of a trace as programs of agents: see Config.ProgramRate. A request without a session is a program alone.
//
// A step arrives once: at the beginning of its program, or when the last step that it waits for ends. A step that fails ends its program:
// the steps that wait never arrive, and those that run end as usual. So a program is completed or lost, and each of both once.
//
// Invariant: unfinished counts the programs of which a step has not arrived, or has not ended.
type programs struct {
	byStep     map[stepName]*step
	unfinished int

	completed, lost int
	// Both are of the completed programs that began after the warm-up, in the order of their ends.
	times    []float64 // seconds
	workings []float64 // seconds
	ends     []float64 // minutes
	rates    []float64 // tokens of answers per second of waiting and computing
	sums     parts     // of all of them
}

// parts are the sums of a program's requests that were answered.
type parts struct {
	queued  time.Duration // in a router's queue
	prefill time.Duration // from there to the first token
	decode  time.Duration // from there to the last token
}

// stepName names a step by its session and its number there.
type stepName struct {
	session string
	number  int
}

// program is a session that is played.
//
// Sub-agents run at a time with each other, so the time of a program's requests is not their sum: working counts the time in which at least
// one of them waits or runs.
type program struct {
	start   time.Duration
	left    int           // steps that have not ended
	working time.Duration // the time of its requests, of those that run at a time together
	running int
	since   time.Duration // of running
	output  int           // tokens
	parts   parts
	lost    bool
}

// step is a request of a program. It is in the agenda when it waits for no other step, and until it arrives.
type step struct {
	arrival trace.Arrival
	program *program
	waits   int     // steps that have not ended
	next    []*step // that wait for this one
}

// seedPrograms is the second half of the seed of the programs' beginnings.
const seedPrograms = 0x9109

// hold reads all arrivals, and adds the first steps of their programs to the agenda. Programs begin by a Poisson process, in the order in
// which the trace has their first requests.
func (r *run) hold() error {
	p := &programs{byStep: map[stepName]*step{}}
	r.programs = p
	bySession := map[string]*program{}
	var steps []*step
	var order []*program
	// All of them are held, because a step may wait for any other one of its session.
	for alone := 0; ; alone++ {
		a, ok, err := r.next()
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		if a.Session == "" {
			a.Session = fmt.Sprint("request ", alone)
		}
		g := bySession[a.Session]
		if g == nil {
			g = &program{}
			bySession[a.Session] = g
			order = append(order, g)
		}
		a.Pause = min(a.Pause, r.cfg.MaxPause)
		s := &step{arrival: a, program: g}
		g.left++
		p.byStep[stepName{a.Session, a.Step}] = s
		steps = append(steps, s)
	}

	// Programs begin one after the other. Their steps follow from the ends of others, and are added then.
	rng := rand.New(rand.NewPCG(r.cfg.Seed, seedPrograms))
	at := 0.0
	for _, g := range order {
		g.start = time.Duration(at * float64(time.Minute))
		at += rng.ExpFloat64() / r.cfg.ProgramRate
	}
	p.unfinished = len(order)

	// A step that waits for one that the trace does not have, because only its first rows are played, waits for the others alone.
	for _, s := range steps {
		for _, number := range s.arrival.After {
			if before := p.byStep[stepName{s.arrival.Session, number}]; before != nil && before != s {
				before.next = append(before.next, s)
				s.waits++
			}
		}
		if s.waits == 0 {
			r.agenda.add(event{at: s.program.start + s.arrival.Pause, kind: stepArrives, step: s})
		}
	}
	r.ended = true
	return nil
}

// beginStep lets a step of a program arrive.
func (r *run) beginStep(s *step) error {
	g := s.program
	if g.lost {
		return nil
	}
	if g.running == 0 {
		g.since = r.now
	}
	g.running++
	return r.submitArrival(s.arrival, s)
}

// endStep ends a step, and lets those arrive that have waited for it. A program of which a request has failed is lost.
func (r *run) endStep(j *job, output int, failed bool) {
	s := j.step
	if s == nil {
		return
	}
	g, p := s.program, r.programs
	if !failed {
		g.parts.queued += j.left - j.at
		g.parts.prefill += j.first - j.left
		g.parts.decode += r.now - j.first
	}
	g.running--
	g.left--
	g.output += output
	if g.running == 0 {
		g.working += r.now - g.since
	}

	// Each program is counted with its last step, or with its first error.
	switch {
	case g.lost:
	case failed:
		g.lost = true
		p.lost++
		p.unfinished--
	case g.left == 0:
		p.completed++
		p.unfinished--
		if g.start >= r.cfg.Warmup {
			p.times = append(p.times, (r.now - g.start).Seconds())
			p.workings = append(p.workings, g.working.Seconds())
			p.ends = append(p.ends, r.now.Minutes())
			p.sums.queued += g.parts.queued
			p.sums.prefill += g.parts.prefill
			p.sums.decode += g.parts.decode
			p.rates = append(p.rates, float64(g.output)/max(g.working.Seconds(), 1e-3))
		}
	}

	// The think time of a step begins with the end of the last one for which it waits.
	for _, next := range s.next {
		next.waits--
		if next.waits == 0 && !g.lost {
			r.agenda.add(event{at: r.now + next.arrival.Pause, kind: stepArrives, step: next})
		}
	}
}

// Programs is the result of the sessions of a trace that were played as programs.
type Programs struct {
	// Completed is how many had all their answers, and Lost how many had an error.
	Completed int `json:"completed"`
	Lost      int `json:"lost"`
	// Time is from the beginning of a program to its last answer, with its pauses, in seconds. Programs of the warm-up do not count.
	Time Quantiles `json:"time_s"`
	// Working is the part of Time in which a program has a request that waits or runs: without its pauses.
	Working Quantiles `json:"working_s"`
	// Queued, Prefill and Decode are seconds, in the mean of programs: the sums over their requests of the times in a router's queue, from
	// there to the first token, and from there to the last one. With sub-agents, which run at a time together, they are more than Working.
	Queued  float64 `json:"queued_s"`
	Prefill float64 `json:"prefill_s"`
	Decode  float64 `json:"decode_s"`
	// Rate is the number of programs that ended in a minute, between the ends of their first and their third quarter.
	Rate float64 `json:"rate_per_min"`
	// Fairness is Jain's index of the tokens of answers per second in which a program has a request that waits or runs: 1 if all
	// programs have the same, and 1/n if one of n has all.
	Fairness float64 `json:"fairness"`
}

// result summarizes the programs; nil without any.
func (p *programs) result() *Programs {
	if p == nil {
		return nil
	}
	sum, squares := 0.0, 0.0
	for _, x := range p.rates {
		sum += x
		squares += x * x
	}
	n := float64(max(1, len(p.times)))
	out := &Programs{
		Completed: p.completed, Lost: p.lost, Time: summary(p.times), Working: summary(p.workings),
		Queued: round(p.sums.queued.Seconds() / n), Prefill: round(p.sums.prefill.Seconds() / n),
		Decode: round(p.sums.decode.Seconds() / n),
	}
	if count := len(p.ends); count >= 4 {
		first, third := count/4, 3*count/4
		out.Rate = round(float64(third-first) / max(p.ends[third]-p.ends[first], 1e-6))
	}
	if squares > 0 {
		out.Fairness = round(sum * sum / (float64(len(p.rates)) * squares))
	}
	return out
}
