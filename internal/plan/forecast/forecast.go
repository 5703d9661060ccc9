package forecast

import (
	"fmt"
	"math"
	"strings"
)

// Forecaster predicts a series. It is a value: Observe does not change its receiver.
type Forecaster interface {
	// Observe returns the state after one more step. NaN is a step without a value: time passes, and nothing is learned.
	Observe(v float64) Forecaster
	// At predicts the value as many steps after the last observed one; less than 1 counts as 1.
	At(steps int) Estimate
}

// Estimate is a predicted value and its standard deviation. Neither is negative or infinite.
type Estimate struct{ Mean, Deviation float64 }

// Quantile returns the value that is not exceeded with probability q, under a normal distribution; at least 0, and finite. q is moved
// into 0.001 to 0.999.
func (e Estimate) Quantile(q float64) float64 {
	if math.IsNaN(q) {
		q = 0.5
	}
	q = min(max(q, 0.001), 0.999)
	return max(0, e.Mean+e.Deviation*math.Sqrt2*math.Erfinv(2*q-1))
}

// Options configure models. The zero Options has defaults.
type Options struct {
	// Season is the number of steps after which the series repeats, such as the steps of a day; 0 is none. Seasonal models keep
	// Slots values of a season; 0 means 96, a quarter of an hour each for a day.
	Season, Slots int
	// Multiplicative has seasons multiply the level instead of adding to it.
	Multiplicative bool
	// Log1p has arima and kalman predict logarithms, for series whose steps are proportional to their size.
	Log1p bool
	// QLevel, QTrend and R are the variances of the Kalman filter: of changes of the level, of changes of the trend, and of
	// observations. 0 means 1, 0.1 and 10, which are Dynamo's.
	QLevel, QTrend, R float64
	// Damping is the remaining share of the trend of the Kalman filter with each step ahead, at most 1; 0
	// means 0.9.
	Damping float64
}

// The bounds of options.
const (
	mostSlots = 1024
	mostSteps = 1 << 30
)

// validate reports the mistake.
func (o Options) validate() error {
	switch {
	case o.Season < 0 || o.Season > mostSteps:
		return fmt.Errorf("a season of %d steps: it must be 0 to %d", o.Season, mostSteps)
	case o.Slots < 0 || o.Slots > mostSlots:
		return fmt.Errorf("a season of %d slots: it must be 0 to %d", o.Slots, mostSlots)
	case !(o.Damping >= 0 && o.Damping <= 1):
		return fmt.Errorf("damping is %v: it must be 0 to 1", o.Damping)
	}
	for _, v := range []float64{o.QLevel, o.QTrend, o.R} {
		if !(v >= 0 && v <= largest) {
			return fmt.Errorf("a variance of the Kalman filter is %v: it must be 0 to 1e15", v)
		}
	}
	return nil
}

// Names returns the names of the models.
func Names() []string { return []string{"constant", "kalman", "arima", "seasonal", "auto"} }

// New returns a forecaster that has observed nothing and predicts 0.
func New(name string, o Options) (Forecaster, error) {
	if err := o.validate(); err != nil {
		return nil, fmt.Errorf("make forecaster: %w", err)
	}
	switch name {
	case "constant":
		return newCalibrated(constant{}), nil
	case "kalman":
		return newCalibrated(newKalman(o)), nil
	case "arima":
		return newCalibrated(newARIMA(o)), nil
	case "seasonal":
		return newSelected(newHolt(quickly), newSeasonal(o)), nil
	case "auto":
		return newSelected(
			newHolt(quickly), constant{}, newHolt(slowly), newHolt(steadily), newKalman(o), newARIMA(o), newSeasonal(o),
		), nil
	}
	return nil, fmt.Errorf("make forecaster: %q is unknown: it must be one of %s", name, strings.Join(Names(), ", "))
}

// Warm returns the state after the values of a trace.
func Warm(f Forecaster, values []float64) Forecaster {
	for _, v := range values {
		f = f.Observe(v)
	}
	return f
}

// largest is the largest value: its square, summed over all steps of a season, is finite.
const largest = 1e15

// bounded moves a value into 0 to largest. NaN stays.
func bounded(v float64) float64 {
	if math.IsNaN(v) {
		return v
	}
	return min(max(v, 0), largest)
}

// model makes the predictions of a forecaster. Values are bounded already; estimates need not be.
type model interface {
	observe(v float64) model
	at(steps int) Estimate
}

// calibrated is a model, with deviations that come from its past forecasts.
type calibrated struct {
	model model
	// past has the predictions for horizon 2^i in a ring of as many places, which begins at place 2^i - 1.
	past   [1<<horizons - 1]float64
	scores [horizons]score
	// step counts steps; it goes on from the first multiple of the longest ring, so that it does not overflow.
	step int
	// peak is the largest value lately: forecasts are not far above it.
	peak float64
}

// horizons is the number of forecasts that are compared with what came: the forecasts for 1, 2, 4 …
// 64 steps.
const horizons = 7

// score is the mean square of errors with forgetting, and how many there were.
type score struct {
	n      float64
	square float64
}

const (
	remembered = 150.0 // steps that a score remembers
	trusted    = 6.0   // comparisons that weigh as much as the variance expected without them
	abovePeak  = 4.0   // forecasts are at most as many times the largest recent value
	peakDecay  = 0.999
)

// newCalibrated returns a model that has observed nothing.
func newCalibrated(m model) *calibrated { return &calibrated{model: m} }

// Observe implements [Forecaster].
func (c *calibrated) Observe(v float64) Forecaster { return c.observe(v) }

// observe compares past forecasts with the value, and makes new ones.
func (c *calibrated) observe(v float64) *calibrated {
	v = bounded(v)
	next := *c
	if !math.IsNaN(v) {
		next.peak = max(c.peak*peakDecay, v)
	}
	next.model = c.model.observe(v)
	for i := range horizons {
		length := 1 << i
		place := length - 1 + c.step%length
		if c.step >= length && !math.IsNaN(v) {
			next.scores[i] = c.scores[i].withError(c.past[place] - v)
		}
		next.past[place] = next.uncorrected(length).Mean
	}

	const longest = 1 << (horizons - 1)
	next.step = c.step + 1
	if next.step == 2*longest {
		next.step = longest
	}
	return &next
}

// withError returns the score with one more error.
func (s score) withError(e float64) score {
	s.n = min(s.n+1, remembered)
	s.square += (e*e - s.square) / s.n
	return s
}

// uncorrected returns the model's estimate within bounds.
func (c *calibrated) uncorrected(steps int) Estimate {
	e := c.model.at(steps)
	if math.IsNaN(e.Mean) {
		e.Mean = 0
	}
	if math.IsNaN(e.Deviation) {
		e.Deviation = largest
	}
	return Estimate{Mean: min(bounded(e.Mean), abovePeak*c.peak), Deviation: bounded(e.Deviation)}
}

// At implements [Forecaster].
func (c *calibrated) At(steps int) Estimate {
	steps = min(max(steps, 1), mostSteps)
	e := c.uncorrected(steps)
	e.Deviation = min(math.Sqrt(c.variance(steps)), largest)
	return e
}

// variance returns the mean square of past errors, between the errors of the two nearest horizons. At horizons that were not compared yet,
// and beyond the last one, it grows as it did in the mean at the shorter ones. The model's own variance of the next step counts until
// there were some comparisons of that.
func (c *calibrated) variance(steps int) float64 {
	place := math.Log2(float64(steps))
	own := c.uncorrected(1).Deviation
	first := c.scores[0].with(own * own)
	before, growth := first, 1.0
	for i := 1; i < horizons; i++ {
		v := c.scores[i].with(before * growth)
		if place < float64(i) {
			share := place - float64(i-1)
			return before*(1-share) + v*share
		}
		if c.scores[i].n >= leastCompared && first > 0 {
			growth = min(max(math.Pow(v/first, 1/float64(i)), 1), 2)
		}
		before = v
	}
	return before * math.Pow(growth, place-float64(horizons-1))
}

// with blends the score with a variance that is expected without it.
func (s score) with(expected float64) float64 {
	if s.n >= 10*trusted {
		return s.square
	}
	weight := trusted * math.Exp(-s.n/trusted)
	return (s.n*s.square + weight*expected) / (s.n + weight)
}

// selected uses, at each horizon, the model whose forecasts were nearest lately.
type selected struct{ models []*calibrated }

// newSelected returns the selection among models. The first is used until others are better.
func newSelected(models ...model) *selected {
	s := &selected{}
	for _, m := range models {
		s.models = append(s.models, newCalibrated(m))
	}
	return s
}

// Observe implements [Forecaster].
func (s *selected) Observe(v float64) Forecaster {
	next := &selected{models: make([]*calibrated, len(s.models))}
	for i, m := range s.models {
		next.models[i] = m.observe(v)
	}
	return next
}

// At implements [Forecaster].
func (s *selected) At(steps int) Estimate {
	steps = min(max(steps, 1), mostSteps)
	i := min(int(math.Round(math.Log2(float64(steps)))), horizons-1)
	best := s.models[0]
	for _, m := range s.models[1:] {
		a, b := m.scores[i], best.scores[i]
		if a.n >= leastCompared && a.square < advantage*b.square {
			best = m
		}
	}
	return best.At(steps)
}

const (
	leastCompared = 20.0 // comparisons before a model may replace an earlier one, and before variances of two horizons are compared
	advantage     = 0.95 // a model must be so much better than an earlier one, in mean squares
)
