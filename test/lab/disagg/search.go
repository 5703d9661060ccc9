package disagg

import (
	"fmt"
	"math"
	"time"

	"github.com/stator-project/stator/internal/perfmodel"
	"github.com/stator-project/stator/internal/sim"
	"github.com/stator-project/stator/internal/trace"
	"github.com/stator-project/stator/test/conversations"
)

// setting has the parameters of a run, besides its rate.
type setting struct {
	workload
	mode
	fleet
	physics
	less     int // divides the number of requests
	requests int
	seed     uint64
}

// outcome is the result of a run.
type outcome struct {
	attained float64 // share of the requests that met their SLA
	*sim.Result
}

// player plays runs. It is safe for concurrent use.
type player struct {
	one  *perfmodel.Profile
	rows []trace.MooncakeRow
}

// source returns the arrivals of a run at a rate, and the factor by which they must be sped up for it.
func (p *player) source(x *setting, rate float64) (next trace.Source, speedup float64, err error) {
	if !x.mooncake {
		next, err = trace.Generated{Requests: x.requests, Rate: rate, Input: x.input, Output: x.output, Seed: x.seed}.Source()
		return next, 1, err
	}
	rows := p.rows[:min(x.requests, len(p.rows))]
	span := (rows[len(rows)-1].Timestamp - rows[0].Timestamp) / 1000 // seconds
	return trace.Jitter(3*time.Second, x.seed, conversations.List(rows)), rate * span / float64(len(rows)), nil
}

// play plays a setting at a rate. A run that can no longer meet the attainment is ended early where brief is set.
func (p *player) play(x *setting, rate float64, brief bool) (outcome, error) {
	next, speedup, err := p.source(x, rate)
	if err != nil {
		return outcome{}, err
	}
	cfg := x.config(p.one, x.physics)
	cfg.PrefillAt = x.at
	cfg.Seed = x.seed
	cfg.ArrivalSpeedup = speedup

	// The fleet is idle at first, so the requests that arrive then are left out.
	warm := x.requests / warmShare
	counted := float64(x.requests - warm)
	cfg.Warmup = time.Duration(float64(warm) / rate * float64(time.Second))
	missed := 0.0
	cfg.Ended = func(o sim.Outcome) {
		if o.Number >= warm && !x.sla.isMet(&o) {
			missed++
		}
	}
	if brief {
		cfg.Stopped = func() bool { return missed > (1-attainment)*counted }
	}
	r, err := sim.Run(cfg, next)
	if err != nil {
		return outcome{}, fmt.Errorf("%s, %v: %w", x.mode.name, x.fleet, err)
	}
	return outcome{1 - missed/counted, r}, nil
}

// warmShare is the part of the requests of a run that are left out of its figures: one of so many.
const warmShare = 5

// isMet reports whether a request has met the SLA.
func (s sla) isMet(o *sim.Outcome) bool {
	if o.Failed || o.First-o.At > s.ttft {
		return false
	}
	return o.Output < 2 || (o.End-o.First)/time.Duration(o.Output-1) <= s.itl
}

// Rates of a search are powers of precise, so that the result does not depend on the rate at which the search begins.
const (
	precise = 1.03
	// stride is the number of powers that a search skips until it has found a rate that is too high.
	stride = 8
	// lowest is the rate for each GPU below which a fleet counts as one that does not meet the SLA at all.
	lowest = 0.05
	// highest is the rate for each GPU at which a search ends: few requests meet the SLA however fast they come.
	highest = 1000
)

// rateOf returns the n-th rate of a search.
func rateOf(n int) float64 { return math.Pow(precise, float64(n)) }

// indexOf returns the highest n whose rate is at most that.
func indexOf(rate float64) int { return int(math.Floor(math.Log(rate)/math.Log(precise) + 1e-9)) }

// meets reports whether the setting meets its SLA at a rate.
func (p *player) meets(x *setting, rate float64) (bool, error) {
	o, err := p.play(x, rate, true)
	return err == nil && !o.Interrupted && o.attained >= attainment, err
}

// capacity returns the highest rate at which the setting meets its SLA, or 0, and no more than highest. The search begins at a guess.
func (p *player) capacity(x *setting, guess float64) (float64, error) {
	bottom := indexOf(lowest * float64(x.gpus()))
	top := indexOf(highest * float64(x.gpus()))
	low, high := bottom, math.MaxInt32 // the SLA is met at low, and not at high
	for n := indexOf(guess); high-low > 1; {
		ok, err := p.meets(x, rateOf(n))
		if err != nil {
			return 0, err
		}
		if ok {
			low = n
		} else {
			high = n
		}

		switch {
		case low >= top:
			return rateOf(low), nil
		case high == math.MaxInt32:
			n = low + stride
		case low == bottom:
			n = max(high-stride, bottom+1)
		default:
			n = (low + high) / 2
		}
	}
	if low == bottom {
		return 0, nil
	}
	return rateOf(low), nil
}

// candidate is a fleet of a grid with its capacity.
type candidate struct {
	fleet
	rate float64
	less bool // the rate is only a bound from above
}

// pruned is the share of the best capacity so far below which the capacity of a candidate is not searched.
const pruned = 0.9

// grid returns the capacities of candidates for a mode, and the best one.
func (p *player) grid(x setting, fleets []fleet, guess float64) (list []candidate, best candidate, err error) {
	for _, f := range fleets {
		x.fleet = f
		x.requests = x.searched * f.gpus() / x.less
		if best.rate > 0 {
			ok, err := p.meets(&x, pruned*best.rate)
			if err != nil {
				return nil, best, err
			}
			if !ok {
				list = append(list, candidate{f, pruned * best.rate, true})
				continue
			}
			guess = best.rate
		}

		rate, err := p.capacity(&x, guess)
		if err != nil {
			return nil, best, err
		}
		list = append(list, candidate{f, rate, false})
		if rate > best.rate {
			best = list[len(list)-1]
		}
	}
	return list, best, nil
}
