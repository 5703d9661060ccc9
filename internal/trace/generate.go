package trace

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

// Generated describes arrivals that are made by rule. Zero fields have their defaults.
type Generated struct {
	// Requests is the number of arrivals; default 1,000.
	Requests int
	// Rate is the mean number of requests per second; default 10.
	Rate float64
	// Arrivals is their distribution in time: constant, poisson (the default), sinusoid or bursts.
	Arrivals string

	// Swing is the amplitude of the sinusoid as a share of Rate (default 0.8), Period its length
	// (default 60 s).
	Swing  float64
	Period time.Duration

	// Burst is the number of requests of a burst, which arrive at one moment; default 32. The time
	// between bursts keeps the rate.
	Burst int
	// Identical makes all prompts of a burst equal.
	Identical bool

	// Input and Output are the mean tokens of prompts and answers; defaults 2,000 and 200. Spread is the
	// distance that a length may have from its mean, as a share of it; lengths are drawn evenly. Default
	// 0.
	Input, Output int
	Spread        float64

	// PrefixShare is the share of the mean prompt that is a shared prefix, drawn evenly from Prefixes
	// of them (default 10).
	PrefixShare float64
	Prefixes    int

	// Seed determines all random choices.
	Seed uint64
}

func (g Generated) withDefaults() Generated {
	g.Requests = cmp.Or(g.Requests, 1000)
	g.Rate = cmp.Or(g.Rate, 10)
	g.Arrivals = cmp.Or(g.Arrivals, "poisson")
	g.Swing = cmp.Or(g.Swing, 0.8)
	g.Period = cmp.Or(g.Period, time.Minute)
	g.Burst = cmp.Or(g.Burst, 32)
	g.Input = cmp.Or(g.Input, 2000)
	g.Output = cmp.Or(g.Output, 200)
	g.Prefixes = cmp.Or(g.Prefixes, 10)
	return g
}

// Validate reports everything that is wrong.
func (g Generated) Validate() error {
	g = g.withDefaults()
	var errs []error
	refuse := func(wrong bool, format string, args ...any) {
		if wrong {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	isShare := func(v float64) bool { return v >= 0 && v <= 1 }

	refuse(g.Requests < 1 || g.Requests > 10_000_000, "%d requests: there must be 1 to 10000000", g.Requests)
	refuse(!(g.Rate > 0 && g.Rate < 1e6), "rate %v: it must be positive and below 1000000", g.Rate)
	refuse(!isShare(g.Swing), "swing %v: it must be from 0 to 1", g.Swing)
	refuse(g.Period < time.Millisecond || g.Period > maxTraceTime, "period %v: it must be at least 1ms", g.Period)
	refuse(g.Burst < 1 || g.Burst > 1_000_000, "burst of %d: it must be 1 to 1000000", g.Burst)
	refuse(g.Input < 1 || g.Input > maxRowTokens, "input of %d tokens: it must be 1 to %d", g.Input, maxRowTokens)
	refuse(g.Output < 1 || g.Output > maxRowTokens, "output of %d tokens: it must be 1 to %d", g.Output, maxRowTokens)
	refuse(!isShare(g.Spread), "spread %v: it must be from 0 to 1", g.Spread)
	refuse(!isShare(g.PrefixShare), "prefix share %v: it must be from 0 to 1", g.PrefixShare)
	refuse(g.Prefixes < 1, "%d prefixes: there must be at least 1", g.Prefixes)
	_, err := g.times()
	return errors.Join(append(errs, err)...)
}

// times returns a function that returns the times of arrivals one after another.
func (g Generated) times() (func() time.Duration, error) {
	rng := rand.New(rand.NewPCG(g.Seed, seedArrivals))
	fixed := func() float64 { return 1 }

	switch g.Arrivals {
	case "constant":
		return spaced(constant(g.Rate), fixed), nil
	case "poisson":
		return spaced(constant(g.Rate), rng.ExpFloat64), nil
	case "sinusoid":
		return spaced(sinusoid(g.Rate, g.Swing, g.Period), rng.ExpFloat64), nil
	case "bursts":
		gap := time.Duration(float64(g.Burst) / g.Rate * float64(time.Second))
		i := 0
		return func() time.Duration {
			at := time.Duration(i/g.Burst) * gap
			i++
			return at
		}, nil
	}
	return nil, fmt.Errorf("arrivals %q are unknown: use constant, poisson, sinusoid or bursts", quoted(g.Arrivals))
}

// rate returns the expected number of requests per second at a time.
type rate func(at time.Duration) float64

func constant(perSecond float64) rate { return func(time.Duration) float64 { return perSecond } }

// sinusoid varies around a mean by a share of it, 0 to 1, once a period.
func sinusoid(mean, swing float64, period time.Duration) rate {
	return func(at time.Duration) float64 {
		return mean * (1 + swing*math.Sin(2*math.Pi*at.Seconds()/period.Seconds()))
	}
}

// lowestRate keeps the time to the next arrival finite if a rate is 0.
const lowestRate = 1e-6

// spaced returns arrivals whose gaps are 1/rate, times a factor drawn for each: 1 spaces them evenly, and
// an exponential draw makes a Poisson process.
func spaced(of rate, factor func() float64) func() time.Duration {
	at := time.Duration(0)
	return func() time.Duration {
		r := max(of(at), lowestRate)
		at += time.Duration(factor() / r * float64(time.Second))
		return at
	}
}

// Source returns the arrivals.
func (g Generated) Source() (Source, error) {
	if err := g.Validate(); err != nil {
		return nil, fmt.Errorf("generate arrivals: %w", err)
	}
	g = g.withDefaults()
	at, err := g.times()
	if err != nil {
		return nil, fmt.Errorf("generate arrivals: %w", err)
	}

	rng := rand.New(rand.NewPCG(g.Seed, seedLengths))
	around := func(mean int) int {
		return max(1, int(math.Round(float64(mean)*(1+g.Spread*(2*rng.Float64()-1)))))
	}
	var prompt Segments
	i := 0
	return func() (Arrival, bool, error) {
		if i == g.Requests {
			return Arrival{}, false, nil
		}

		if !g.Identical || i%g.Burst == 0 {
			shared := int(g.PrefixShare * float64(g.Input))
			prefix := uint64(rng.IntN(g.Prefixes))<<tagBits | tagPrefix
			length := around(g.Input)
			prompt = Segments{{prefix, min(shared, length)}, {uint64(i)<<tagBits | tagGenerated, max(0, length-shared)}}
		}
		i++
		return Arrival{At: at(), Prompt: prompt, Output: around(g.Output)}, true, nil
	}, nil
}
