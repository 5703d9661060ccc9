package answers

import (
	"math"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/extproc/messages"
)

// The values of the label source of answer tokens.
const (
	byUsage    = "usage"    // the engine's own count, in the answer
	byEstimate = "estimate" // from the bytes of a stream without usage
)

// tokenCounters are the counters of answer tokens by their sources.
type tokenCounters struct{ usage, estimate prometheus.Counter }

// countersOf returns the counters of a model and a worker or tenant.
func countersOf(v *prometheus.CounterVec, of key) tokenCounters {
	return tokenCounters{v.WithLabelValues(of.model, of.name, byUsage), v.WithLabelValues(of.model, of.name, byEstimate)}
}

// add counts the tokens of an answer.
func (c *tokenCounters) add(tokens int64, counted bool) {
	if counted {
		c.usage.Add(float64(tokens))
	} else {
		c.estimate.Add(float64(tokens))
	}
}

// density is how many bytes the streams of a model have for each token. Engines send an event of some 250 bytes for each token; those that
// join tokens, and models with long tokens, have other numbers.
type density struct{ bytes, tokens float64 }

const (
	firstDensity = 250 // bytes for a token, until a stream with usage has ended
	firstWeight  = 10  // tokens that the first density counts as
	maxWeight    = 1e6 // tokens after which older streams count half
)

// newDensity returns the density before the first stream.
func newDensity() *density { return &density{firstDensity * firstWeight, firstWeight} }

// observe learns from a stream with usage.
func (d *density) observe(bytes, tokens uint64) {
	d.bytes += float64(bytes)
	d.tokens += float64(tokens)
	if d.tokens > maxWeight {
		d.bytes /= 2
		d.tokens /= 2
	}
}

// tokensOf returns the tokens of an answer, and whether the engine has counted them. Only streams are estimated: other answers have usage,
// or no tokens.
func (d *density) tokensOf(e *messages.Entry, stream bool) (tokens int64, counted bool) {
	if e.Counted {
		if stream {
			d.observe(e.ResponseBytes, e.AnswerTokens)
		}
		return int64(e.AnswerTokens), true
	}
	if !stream {
		return 0, false
	}
	return int64(math.Round(float64(e.ResponseBytes) / d.bytes * d.tokens)), false
}
