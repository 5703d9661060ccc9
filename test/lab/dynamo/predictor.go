package dynamo

import (
	"fmt"
	"math"

	"github.com/stator-project/stator/internal/plan/forecast"
)

// Kalman configures the Kalman filter: the variances of level, trend and observations, and how many values it needs.
type Kalman struct {
	QLevel, QTrend, R float64
	MinPoints         int
}

// DefaultKalman is Dynamo's filter.
func DefaultKalman() Kalman { return Kalman{1, 0.1, 10, 5} }

// Predictor predicts the next value of one series as Dynamo's predictors do. It is a value: Add returns the next one. The kinds:
//
//	constant  the last value
//	kalman    a local linear trend; not kept above 0
//	arima     an autoregression of the last 64 values (forecast's, where Dynamo has pmdarima's auto_arima over all values)
//
// A value that is no number counts as 0. Zeros before the first other value since the start, or since [Predictor.Reset], are left out.
// With fewer values than a kind needs, the prediction is the last one.
type Predictor struct {
	kind   string
	kalman Kalman
	log1p  bool
	active bool // there was a value other than 0 since the start or the reset
	last   float64
	n      int
	same   bool // all values were equal

	level, trend float64
	p            [3]float64 // the covariance: of the level, of both, of the trend
	series       forecast.Forecaster
}

// leastARIMA is the number of values that ARIMA needs.
const leastARIMA = 5

// NewPredictor returns the configured predictor without values. The error names the values that the configuration must have.
func (c *Config) NewPredictor() (Predictor, error) {
	p := Predictor{kind: c.Predictor, kalman: c.Kalman, log1p: c.Log1p, same: true, p: [3]float64{1000, 0, 1000}}
	switch c.Predictor {
	case "constant", "kalman":
		return p, nil
	case "arima":
		series, err := forecast.New("arima", forecast.Options{Log1p: c.Log1p})
		p.series = series
		return p, err
	}
	return p, fmt.Errorf("make predictor: %q is unknown: it must be constant, arima or kalman", c.Predictor)
}

// Reset has the next zeros left out until another value comes. Dynamo does so after it has warmed a predictor from a trace.
func (p Predictor) Reset() Predictor {
	p.active = false
	return p
}

// Len returns how many values were recorded.
func (p Predictor) Len() int { return p.n }

// Add returns the predictor with one more value.
func (p Predictor) Add(v float64) Predictor {
	if !finite(v) {
		v = 0
	}
	if v == 0 && !p.active {
		return p
	}
	p.active = p.active || v != 0
	p.same = p.same && (p.n == 0 || v == p.last)
	p.last = v
	p.n++

	switch p.kind {
	case "arima":
		p.series = p.series.Observe(v)
	case "kalman":
		p.filter(v)
	}
	return p
}

// filter updates the Kalman filter, which predicts once for each value.
func (p *Predictor) filter(v float64) {
	if p.log1p {
		v = math.Log1p(max(0, v))
	}
	if p.n == 1 {
		p.level = v
		return
	}
	p.level += p.trend
	qLevel, qTrend := max(1e-12, p.kalman.QLevel), max(1e-12, p.kalman.QTrend)
	p.p = [3]float64{p.p[0] + 2*p.p[1] + p.p[2] + qLevel, p.p[1] + p.p[2], p.p[2] + qTrend}

	s := p.p[0] + max(1e-9, p.kalman.R)
	level, trend := p.p[0]/s, p.p[1]/s
	e := v - p.level
	p.level += level * e
	p.trend += trend * e
	p.p = [3]float64{(1 - level) * p.p[0], (1 - level) * p.p[1], p.p[2] - trend*p.p[1]}
}

// Predict returns the next value.
func (p Predictor) Predict() float64 {
	switch {
	case p.kind == "kalman" && p.n >= max(1, p.kalman.MinPoints):
		if p.log1p {
			return max(0, math.Expm1(p.level+p.trend))
		}
		return p.level + p.trend
	case p.kind == "arima" && p.n >= leastARIMA && !p.same:
		return p.series.At(1).Mean
	}
	return p.last
}

// Series are the three that Dynamo predicts. It is a value.
type Series struct {
	Requests, ISL, OSL    Predictor
	lastISL, lastOSL      float64
	HitRate, AcceptTokens float64 // values of the last window, which are not predicted
}

// NewSeries returns three predictors of the configured kind.
func (c *Config) NewSeries() (Series, error) {
	p, err := c.NewPredictor()
	return Series{Requests: p, ISL: p, OSL: p}, err
}

// Window returns the series with the values of a window: requests that arrived, and their mean lengths. A window without requests
// records 0 of them, and the lengths of the one before.
func (s Series) Window(requests, isl, osl float64) Series {
	if requests > 0 {
		s.lastISL, s.lastOSL = isl, osl
	}
	s.Requests = s.Requests.Add(requests)
	s.ISL = s.ISL.Add(s.lastISL)
	s.OSL = s.OSL.Add(s.lastOSL)
	return s
}

// Reset has the zeros at the beginning of live traffic left out, see [Predictor.Reset].
func (s Series) Reset() Series {
	s.Requests = s.Requests.Reset()
	s.ISL = s.ISL.Reset()
	s.OSL = s.OSL.Reset()
	return s
}

// Traffic returns the predictions for the next interval.
func (c *Config) Traffic(s Series) Traffic {
	return Traffic{
		Requests: s.Requests.Predict(), ISL: s.ISL.Predict(), OSL: s.OSL.Predict(), Interval: c.Interval,
		HitRate: s.HitRate, AcceptLength: s.AcceptTokens,
	}
}
