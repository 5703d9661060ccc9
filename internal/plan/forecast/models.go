package forecast

import "math"

// constant predicts the last value. Its deviation follows from a random walk with the recent differences.
type constant struct {
	last  float64
	moves score
	seen  bool
}

func (c constant) observe(v float64) model {
	if math.IsNaN(v) {
		return c
	}
	if c.seen {
		c.moves = c.moves.withError(v - c.last)
	}
	c.last, c.seen = v, true
	return c
}

func (c constant) at(steps int) Estimate {
	if c.moves.n == 0 {
		return Estimate{Mean: c.last, Deviation: c.last / 2} // one value alone has no spread: take half of it
	}
	return Estimate{Mean: c.last, Deviation: math.Sqrt(c.moves.square * float64(steps))}
}

// kalman is a local linear trend: the level changes by the trend, and both by noise.
type kalman struct {
	o            Options
	level, trend float64
	// p is the covariance of level and trend.
	p    [3]float64 // of the level; of both; of the trend
	seen bool
}

// newKalman returns a filter with the options' defaults.
func newKalman(o Options) kalman {
	or := func(v *float64, d float64) {
		if *v == 0 {
			*v = d
		}
	}
	or(&o.QLevel, 1)
	or(&o.QTrend, 0.1)
	or(&o.R, 10)
	or(&o.Damping, 0.9)
	return kalman{o: o, p: [3]float64{1000, 0, 1000}}
}

func (k kalman) observe(v float64) model {
	if !math.IsNaN(v) && k.o.Log1p {
		v = math.Log1p(v)
	}
	if !k.seen {
		if math.IsNaN(v) {
			return k
		}
		k.level, k.seen = v, true
		return k
	}

	k.level, k.p = k.level+k.trend, k.ahead()
	if math.IsNaN(v) {
		// The trend fades while there are no values, or the level would leave all bounds. So does the growth of the covariance.
		k.trend *= k.o.Damping
		k.p = [3]float64{min(k.p[0], 1e6), 0, min(k.p[2], 1e6)}
		return k
	}
	s := k.p[0] + k.o.R
	gainLevel, gainTrend := k.p[0]/s, k.p[1]/s
	e := v - k.level
	k.level += gainLevel * e
	k.trend += gainTrend * e
	k.p = [3]float64{(1 - gainLevel) * k.p[0], (1 - gainLevel) * k.p[1], k.p[2] - gainTrend*k.p[1]}

	if k.level < 0 {
		k.level, k.trend = 0, max(0, k.trend) // a series that has ended has no level below 0 to come back from
	}
	return k
}

// ahead returns the covariance one step later.
func (k kalman) ahead() [3]float64 {
	return [3]float64{k.p[0] + 2*k.p[1] + k.p[2] + k.o.QLevel, k.p[1] + k.p[2], k.p[2] + k.o.QTrend}
}

func (k kalman) at(steps int) Estimate {
	if !k.seen {
		return Estimate{}
	}
	h := float64(steps)
	reach := h // steps of the whole trend that are added
	if d := k.o.Damping; d < 1 {
		reach = d * (1 - math.Pow(d, h)) / (1 - d)
	}
	mean := k.level + reach*k.trend
	variance := k.p[0] + 2*reach*k.p[1] + reach*reach*k.p[2] + h*k.o.QLevel + reach*reach*h/3*k.o.QTrend + k.o.R
	return k.scaled(mean, math.Sqrt(max(0, variance)))
}

// scaled returns an estimate in the series' scale.
func (k kalman) scaled(mean, deviation float64) Estimate {
	if !k.o.Log1p {
		return Estimate{mean, deviation}
	}
	return fromLog(mean, deviation)
}

// fromLog returns the estimate of a value whose logarithm is known. Exponents are bounded, because a forecast of a logarithm that is
// off by some units is off by orders of magnitude.
func fromLog(mean, deviation float64) Estimate {
	m := math.Expm1(min(mean, 40))
	return Estimate{m, (m + 1) * math.Expm1(min(deviation, 3))}
}

// holt is exponential smoothing with a damped trend.
type holt struct {
	smoothing
	level, trend float64
	moves        score
	seen         bool
}

// smoothing is the weights of one observation in the level and in the trend, and what remains of the trend with each step.
type smoothing struct{ ofLevel, ofTrend, damping float64 }

// The smoothings. The quick one follows a jump within some steps. The others follow what remains when the noise of single steps is
// averaged out: with ten requests in a step, their number varies by a third around an unchanged rate. One has the mean of the last
// twenty steps or so, and one also a trend.
var (
	quickly  = smoothing{0.3, 0.1, 0.9}
	slowly   = smoothing{0.05, 0, 0.9}
	steadily = smoothing{0.12, 0.03, 0.98}
)

func newHolt(s smoothing) holt { return holt{smoothing: s} }

func (s holt) observe(v float64) model { return s.next(v) }

// next returns the state after a value.
func (s holt) next(v float64) holt {
	if math.IsNaN(v) {
		s.level += s.damping * s.trend
		s.trend *= s.damping
		return s
	}
	if !s.seen {
		s.level, s.seen = v, true
		return s
	}

	predicted := s.level + s.damping*s.trend
	s.moves = s.moves.withError(v - predicted)
	level := predicted + s.ofLevel*(v-predicted)
	s.trend = s.ofTrend*(level-s.level) + (1-s.ofTrend)*s.damping*s.trend
	s.level = level
	return s
}

func (s holt) at(steps int) Estimate {
	h := float64(steps)
	reach := s.damping * (1 - math.Pow(s.damping, h)) / (1 - s.damping)
	mean := s.level + reach*s.trend
	if s.moves.n == 0 {
		return Estimate{mean, mean / 2}
	}
	return Estimate{mean, math.Sqrt(s.moves.square * (1 + (h-1)*s.ofLevel*s.ofLevel))}
}
