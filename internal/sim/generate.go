package sim

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

// Generated are arrivals made by rule instead of recorded ones.
type Generated struct {
	// Requests is how many; default 1,000.
	Requests int
	// Rate is how many per second on average; default 10.
	Rate float64
	// Arrivals is how they come: constant, poisson (the default), sinusoid or bursts.
	Arrivals string
	// Swing and Period are those of the sinusoid: by which share of the mean it swings (default 0.8),
	// how long a wave is (default 60 s).
	Swing  float64
	Period time.Duration
	// Burst is how many requests of a burst come at one moment; default 32. Bursts follow each other
	// so that the rate is kept.
	Burst int
	// Identical makes all prompts of a burst equal.
	Identical bool
	// Input and Output are the mean tokens of prompts and answers; defaults 2,000 and 200. Spread is
	// how far each lies from its mean, as a share of it, evenly drawn; default 0.
	Input, Output int
	Spread        float64
	// PrefixShare is the share of the mean prompt that is one of Prefixes shared beginnings (default
	// 10), drawn evenly.
	PrefixShare float64
	Prefixes    int
	// Seed makes all choices.
	Seed uint64
}

func (g Generated) withDefaults() Generated {
	set := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	set(&g.Requests, 1000)
	set(&g.Burst, 32)
	set(&g.Input, 2000)
	set(&g.Output, 200)
	set(&g.Prefixes, 10)
	if g.Rate == 0 {
		g.Rate = 10
	}
	if g.Arrivals == "" {
		g.Arrivals = "poisson"
	}
	if g.Swing == 0 {
		g.Swing = 0.8
	}
	if g.Period == 0 {
		g.Period = time.Minute
	}
	return g
}

// Validate reports everything that is wrong.
func (g Generated) Validate() error {
	g = g.withDefaults()
	var errs []error
	bad := func(wrong bool, format string, args ...any) {
		if wrong {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	share := func(v float64) bool { return v >= 0 && v <= 1 }
	bad(g.Requests < 1 || g.Requests > 10_000_000, "%d requests: there must be 1 to 10000000", g.Requests)
	bad(!(g.Rate > 0 && g.Rate < 1e6), "rate %v: it must be positive", g.Rate)
	bad(!share(g.Swing), "swing %v: it must be from 0 to 1", g.Swing)
	bad(g.Period < time.Millisecond || g.Period > maxTraceTime, "period %v: it must be at least 1ms", g.Period)
	bad(g.Burst < 1 || g.Burst > 1_000_000, "burst of %d: it must be 1 to 1000000", g.Burst)
	bad(g.Input < 1 || g.Input > maxTraceTokens, "input of %d tokens: it must be 1 to %d", g.Input, maxTraceTokens)
	bad(g.Output < 1 || g.Output > maxTraceTokens, "output of %d tokens: it must be 1 to %d", g.Output, maxTraceTokens)
	bad(!share(g.Spread), "spread %v: it must be from 0 to 1", g.Spread)
	bad(!share(g.PrefixShare), "prefix share %v: it must be from 0 to 1", g.PrefixShare)
	bad(g.Prefixes < 1, "%d prefixes: there must be at least 1", g.Prefixes)
	if _, err := g.times(1); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// times gives the moments of n arrivals one by one.
func (g Generated) times(n int) (func() time.Duration, error) {
	rng := rand.New(rand.NewPCG(g.Seed, 0x7135))
	var rate Rate
	random := true
	switch g.Arrivals {
	case "constant":
		rate, random = Constant(g.Rate), false
	case "poisson":
		rate = Constant(g.Rate)
	case "sinusoid":
		rate = Sinusoid(g.Rate, g.Swing, g.Period)
	case "bursts":
		gap := time.Duration(float64(g.Burst) / g.Rate * float64(time.Second))
		i := 0
		return func() time.Duration { i++; return time.Duration((i-1)/g.Burst) * gap }, nil
	default:
		return nil, fmt.Errorf("arrivals %q are unknown: use constant, poisson, sinusoid or bursts", cut(g.Arrivals))
	}
	list := Times(n, rate, random, rng)
	return func() time.Duration {
		at := list[0]
		list = list[1:]
		return at
	}, nil
}

// Source gives the arrivals out.
func (g Generated) Source() (Source, error) {
	if err := g.Validate(); err != nil {
		return nil, fmt.Errorf("generate arrivals: %w", err)
	}
	g = g.withDefaults()
	at, err := g.times(g.Requests)
	if err != nil {
		return nil, fmt.Errorf("generate arrivals: %w", err)
	}
	rng := rand.New(rand.NewPCG(g.Seed, 0x6e11))
	around := func(mean int) int {
		return max(1, int(math.Round(float64(mean)*(1+g.Spread*(2*rng.Float64()-1)))))
	}
	var last stretches
	i := 0
	return func() (a Arrival, ok bool, err error) {
		if i == g.Requests {
			return a, false, nil
		}
		a.At = at()
		if !g.Identical || i%g.Burst == 0 {
			shared := int(g.PrefixShare * float64(g.Input))
			prefix := uint64(rng.IntN(g.Prefixes))<<20 | 0x9e4f1
			whole := around(g.Input)
			last = stretches{{prefix, min(shared, whole)}, {uint64(i)<<20 | 0x6e11a, max(0, whole-shared)}}
		}
		i++
		a.Prompt, a.Output = last, around(g.Output)
		return a, true, nil
	}, nil
}
