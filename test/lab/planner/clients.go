package planner

import (
	_ "embed"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/stator-project/stator/internal/plan/capacity"
	"github.com/stator-project/stator/internal/trace"
	"github.com/stator-project/stator/test/lab/renewal"
)

//go:embed heldout.txt
var clientsText string

// part is the time for which a client of ServeGen has one rate.
const part = 10 * time.Minute

// parts is the number of them in a window of heldout.txt.
const parts = 12

// clientOf is a client of ServeGen in a window.
type clientOf struct {
	weibull         bool
	prompt, answer  lengths
	rates, variance [parts]float64 // requests/s, and the coefficient of variation of the times between arrivals
}

// lengths are the lengths of prompts or answers in tokens.
type lengths struct{ mean, variation float64 }

// The bounds of what heldout.txt has. Scaled to a few requests per second, a client with a greater variation sends hundreds of requests at
// one moment, and then none for minutes.
const (
	mostVariation       = 5.0
	mostLengthVariation = 2.0
	longestText         = 8192 // tokens of a prompt or an answer
)

// draw returns a length from a log-normal distribution.
func (l lengths) draw(r *rand.Rand) int {
	v := min(l.variation, mostLengthVariation)
	square := math.Log(1 + v*v)
	n := math.Exp(math.Log(max(l.mean, 1)) - square/2 + math.Sqrt(square)*r.NormFloat64())
	return int(math.Round(min(max(n, 1), longestText)))
}

// windows are clients by service and rule.
type windows map[string][]clientOf

// load returns the load of a window's clients at a mean rate, for so many minutes.
func (w windows) load(window string, rate float64, minutes int, seed uint64) load {
	return loadOf(w[window], rate, minutes/int(part.Minutes()), seed)
}

// readWindows parses heldout.txt: clients by service and rule.
func readWindows(text string) (windows, error) {
	out := windows{}
	name := ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if rest, ok := strings.CutPrefix(line, "window "); ok {
			f := strings.Fields(rest)
			name = f[0] + " " + f[1]
			continue
		}

		var c clientOf
		var id, distribution string
		fields := []any{&id, &distribution, &c.prompt.mean, &c.prompt.variation, &c.answer.mean, &c.answer.variation}
		rest := strings.ReplaceAll(line, ":", " ")
		for i := range parts {
			fields = append(fields, &c.rates[i], &c.variance[i])
		}
		if _, err := fmt.Sscan(rest, fields...); err != nil {
			return nil, fmt.Errorf("read client %.20q: %w", line, err)
		}
		c.weibull = distribution == "weibull"
		out[name] = append(out[name], c)
	}
	return out, nil
}

// scaleTo scales the rates of clients to a mean of so many requests per second in their first parts.
func scaleTo(clients []clientOf, mean float64, n int) []clientOf {
	sum := 0.0
	for _, c := range clients {
		for _, v := range c.rates[:n] {
			sum += v / float64(n)
		}
	}
	out := slices.Clone(clients)
	for i := range out {
		for k := range out[i].rates {
			out[i].rates[k] *= mean / sum
		}
	}
	return out
}

// shapeOf returns the lengths of the requests of clients in their first parts.
func shapeOf(clients []clientOf, n int) capacity.Shape {
	var prompts, answers weighted
	for _, c := range clients {
		rate := 0.0
		for _, v := range c.rates[:n] {
			rate += v
		}
		prompts.add(rate, c.prompt)
		answers.add(rate, c.answer)
	}
	var s capacity.Shape
	s.Prompt, s.PromptSpread = prompts.spread()
	s.Answer, s.AnswerSpread = answers.spread()
	return s
}

// weighted sums lengths.
type weighted struct{ weight, sum, squares float64 }

func (w *weighted) add(weight float64, l lengths) {
	w.weight += weight
	w.sum += weight * l.mean
	w.squares += weight * l.square()
}

// spread returns the mean and the coefficient of variation.
func (w *weighted) spread() (mean, variation float64) {
	mean = w.sum / w.weight
	return mean, math.Sqrt(w.squares/w.weight/(mean*mean) - 1)
}

// square is the mean of the squares.
func (l lengths) square() float64 {
	v := min(l.variation, mostLengthVariation)
	return l.mean * l.mean * (1 + v*v)
}

// requestsOf returns the requests of clients in their first parts. The same seed gives the same ones.
func requestsOf(clients []clientOf, n int, seed uint64) []trace.Arrival {
	var out []trace.Arrival
	for i := range clients {
		c := &clients[i]
		r := rand.New(rand.NewPCG(seed, uint64(i)))
		for _, at := range c.times(r, n) {
			out = append(out, trace.Arrival{At: at, Prompt: trace.Segments{{Length: c.prompt.draw(r)}}, Output: c.answer.draw(r)})
		}
	}
	slices.SortStableFunc(out, func(a, b trace.Arrival) int { return int(a.At - b.At) })
	for i := range out {
		// No two prompts share a beginning.
		out[i].Prompt.(trace.Segments)[0].ID = uint64(i) + 1
	}
	return out
}

// times returns the times of a client's requests. Its times between arrivals are drawn on a clock that shows the expected number of
// requests, so that a burst goes on when the rate changes. They begin before the window, so that bursts of clients do not coincide there.
func (c *clientOf) times(r *rand.Rand, n int) (out []time.Duration) {
	const before = 100.0
	between := make([]func(*rand.Rand) float64, n)
	for i := range n {
		between[i] = renewal.Intervals(c.weibull, min(max(c.variance[i], 0.1), mostVariation))
	}
	i, begin := 0, 0.0 // the part, and what the clock shows at its begin
	for clock := -before * (1 + r.Float64()); ; {
		clock += between[i](r)
		for clock > begin+c.rates[i]*part.Seconds() {
			begin += c.rates[i] * part.Seconds()
			i++
			if i == n {
				return out
			}
		}
		if clock >= 0 {
			out = append(out, time.Duration(i)*part+time.Duration((clock-begin)/c.rates[i]*float64(time.Second)))
		}
	}
}
