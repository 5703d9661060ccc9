package forecast

import (
	"math"
	"slices"
)

// arima is an autoregression of the latest values, or of their differences. The order is the one with the least AIC. Fits are least
// squares; moving averages are left out, because longer autoregressions approximate them without iterations.
type arima struct {
	logs bool
	// window has the latest values, oldest first. It never changes.
	window []float64
	fit    autoregression
	since  int // observations since the last fit
}

const (
	arimaWindow = 64
	arimaOrder  = 5
	arimaRefit  = 4 // observations between two fits
	arimaLeast  = 12
)

// autoregression predicts mean + sum of coefficients times the deviations from the mean before, the latest one first. It is about
// values, or about their differences. variance is the variance of its errors.
type autoregression struct {
	differences  bool
	mean         float64
	coefficients []float64
	variance     float64
}

func newARIMA(o Options) arima {
	return arima{logs: o.Log1p, fit: autoregression{differences: true}}
}

func (m arima) observe(v float64) model {
	if math.IsNaN(v) {
		if len(m.window) == 0 {
			return m
		}
		v = m.values(1)[0] // the window has no gaps
	} else if m.logs {
		v = math.Log1p(v)
	}

	window := make([]float64, 0, min(len(m.window)+1, arimaWindow))
	window = append(window, m.window[max(0, len(m.window)+1-arimaWindow):]...)
	m.window = append(window, v)
	m.since++
	if m.since >= arimaRefit && len(m.window) >= arimaLeast {
		m.fit, m.since = fitted(m.window), 0
	}
	return m
}

// fitted returns the best autoregression of a window. All candidates predict the same values, so that their AIC compares.
func fitted(window []float64) autoregression {
	targets := window[arimaOrder+1:]
	n := float64(len(targets))
	least := math.Inf(1)
	var best autoregression
	for _, differences := range []bool{true, false} {
		for order := range arimaOrder + 1 {
			a, ok := autoregress(window, differences, order)
			if !ok {
				continue
			}
			parameters := float64(order)
			if !differences {
				parameters++
			}
			aic := n*math.Log(max(a.variance, 1e-12)) + 2*parameters*n/max(1, n-parameters-1)
			if aic < least {
				best, least = a, aic
			}
		}
	}
	return best
}

// autoregress fits one order by least squares.
func autoregress(window []float64, differences bool, order int) (autoregression, bool) {
	a := autoregression{differences: differences}
	series := window
	if differences {
		series = make([]float64, len(window)-1)
		for i := range series {
			series[i] = window[i+1] - window[i]
		}
	} else {
		for _, v := range window {
			a.mean += v / float64(len(window))
		}
	}

	first := len(series) - (len(window) - arimaOrder - 1) // the first value to predict
	var m [arimaOrder][arimaOrder + 1]float64
	for t := first; t < len(series); t++ {
		for i := range order {
			for j := range order {
				m[i][j] += (series[t-1-i] - a.mean) * (series[t-1-j] - a.mean)
			}
			m[i][order] += (series[t-1-i] - a.mean) * (series[t] - a.mean)
		}
	}
	var ok bool
	a.coefficients, ok = solved(&m, order)
	if !ok {
		return a, false
	}

	for t := first; t < len(series); t++ {
		e := series[t] - a.next(series[:t])
		a.variance += e * e / float64(len(series)-first)
	}
	return a, true
}

// next predicts the value after a series.
func (a *autoregression) next(series []float64) float64 {
	v := a.mean
	for i, c := range a.coefficients {
		v += c * (series[len(series)-1-i] - a.mean)
	}
	return v
}

// solved solves a symmetric system of an order by elimination. A little is added to the diagonal, so that constant series have a
// solution, too.
func solved(m *[arimaOrder][arimaOrder + 1]float64, order int) ([]float64, bool) {
	for i := range order {
		m[i][i] += 1e-6*m[i][i] + 1e-12
	}
	for c := range order {
		if !(m[c][c] > 0) {
			return nil, false
		}
		for r := c + 1; r < order; r++ {
			f := m[r][c] / m[c][c]
			for k := c; k < order; k++ {
				m[r][k] -= f * m[c][k]
			}
			m[r][order] -= f * m[c][order]
		}
	}

	x := make([]float64, order)
	for c := order - 1; c >= 0; c-- {
		x[c] = m[c][order]
		for k := c + 1; k < order; k++ {
			x[c] -= m[c][k] * x[k]
		}
		x[c] /= m[c][c]
		if math.IsNaN(x[c]) || math.IsInf(x[c], 0) {
			return nil, false
		}
	}
	return x, true
}

// farthest is the number of steps that are computed. Later ones have the value of the last.
const farthest = 256

// values predicts the next steps. An autoregression may be unstable, so values stay within the window's range and half of it more.
func (m arima) values(steps int) []float64 {
	steps = min(steps, farthest)
	low, high := slices.Min(m.window), slices.Max(m.window)
	low, high = low-(high-low)/2, high+(high-low)/2

	// history has the values of the autoregression, or their differences, and out the predicted values.
	history := make([]float64, 0, len(m.window)+steps)
	history = append(history, m.window...)
	if m.fit.differences {
		history = history[:0]
		for i := 1; i < len(m.window); i++ {
			history = append(history, m.window[i]-m.window[i-1])
		}
	}
	out := make([]float64, 0, steps)
	last := m.window[len(m.window)-1]
	for range steps {
		v := m.fit.next(history)
		if m.fit.differences {
			v += last
		}
		v = min(max(v, low), high)
		if m.fit.differences {
			history = append(history, v-last)
		} else {
			history = append(history, v)
		}
		out = append(out, v)
		last = v
	}
	return out
}

func (m arima) at(steps int) Estimate {
	if len(m.window) == 0 {
		return Estimate{}
	}
	ahead := m.values(steps)
	mean := ahead[len(ahead)-1]
	deviation := math.Sqrt(m.fit.variance * float64(steps))
	if len(m.window) < arimaLeast {
		deviation = mean / 2
	}
	if m.logs {
		return fromLog(mean, deviation)
	}
	return Estimate{mean, deviation}
}
