package dynamo

import (
	"math"
	"slices"
)

const (
	leastForBend = 6     // samples from which a prefill fit has a bend
	leastScale   = 25.0  // milliseconds; errors of shorter passes do not count for more
	slopeSlack   = -1e-6 // slopes below it are negative, and not only rounded
	ridge        = 1e-9  // added to the diagonal of a system that is singular
)

// bent fits a line with one bend, with weights that make errors relative, and the best of twelve knots: four quantiles of the
// samples and eight lengths between the least and the largest, evenly in the logarithm.
func (r Regression) bent() (Fit, bool) {
	lengths := make([]float64, 0, len(r.samples))
	for _, s := range r.samples {
		lengths = append(lengths, s.PromptTokens)
	}
	slices.Sort(lengths)
	n := len(lengths)
	low, high := lengths[0], lengths[n-1]
	if low == high {
		return Fit{}, false
	}

	var knots []float64
	for k := 1; k <= 4; k++ {
		knots = append(knots, lengths[k*(n-1)/5])
	}
	for i := 1; low > 0 && i <= 8; i++ {
		knots = append(knots, low*math.Pow(high/low, float64(i)/9))
	}

	var best Fit
	found := false
	for _, k := range knots {
		if k <= low || k >= high {
			continue
		}
		f, ok := r.bentAt(k)
		if ok && (!found || f.RelativeError < best.RelativeError) {
			best, found = f, true
		}
	}
	return best, found
}

// bentAt fits a line that bends at a length. It is false if the line falls anywhere.
func (r Regression) bentAt(knot float64) (Fit, bool) {
	rows, targets := make([][]float64, len(r.samples)), make([]float64, len(r.samples))
	for i, s := range r.samples {
		w := 1 / max(s.Milliseconds, leastScale)
		rows[i] = []float64{w, w * s.PromptTokens, w * max(s.PromptTokens-knot, 0)}
		targets[i] = w * s.Milliseconds
	}
	x, ok := solveLeastSquares(rows, targets)
	if !ok || x[1] < slopeSlack || x[1]+x[2] < slopeSlack {
		return Fit{}, false
	}
	return r.judged(Fit{Kind: r.kind, Intercept: x[0], A: x[1], Bend: x[2], Knot: knot}), true
}

// solveLeastSquares returns the x that makes rows·x nearest to targets. Columns are scaled first, because tokens and requests
// differ by orders of magnitude. It is false if the result is no number.
func solveLeastSquares(rows [][]float64, targets []float64) ([]float64, bool) {
	n := len(rows[0])
	scale := make([]float64, n)
	for _, row := range rows {
		for j, v := range row {
			scale[j] = max(scale[j], math.Abs(v))
		}
	}
	for j := range scale {
		if scale[j] == 0 {
			scale[j] = 1
		}
	}

	// The normal equations.
	m := make([][]float64, n)
	for j := range m {
		m[j] = make([]float64, n+1)
	}
	for i, row := range rows {
		for j := range n {
			for k := range n {
				m[j][k] += row[j] / scale[j] * row[k] / scale[k]
			}
			m[j][n] += row[j] / scale[j] * targets[i]
		}
	}

	x, ok := eliminate(copied(m))
	if !ok {
		for j := range m {
			m[j][j] += ridge * max(1, m[j][j])
		}
		x, ok = eliminate(m)
	}
	for j := range x {
		x[j] /= scale[j]
		ok = ok && finite(x[j])
	}
	return x, ok
}

func copied(m [][]float64) [][]float64 {
	c := make([][]float64, len(m))
	for i := range m {
		c[i] = slices.Clone(m[i])
	}
	return c
}

// eliminate solves a linear system by Gaussian elimination with pivots. The last column is the right side. It changes m.
func eliminate(m [][]float64) ([]float64, bool) {
	n := len(m)
	for c := range n {
		pivot := c
		for r := c + 1; r < n; r++ {
			if math.Abs(m[r][c]) > math.Abs(m[pivot][c]) {
				pivot = r
			}
		}
		if !(math.Abs(m[pivot][c]) > 1e-12) {
			return nil, false
		}
		m[c], m[pivot] = m[pivot], m[c]

		for r := c + 1; r < n; r++ {
			f := m[r][c] / m[c][c]
			for k := c; k <= n; k++ {
				m[r][k] -= f * m[c][k]
			}
		}
	}

	x := make([]float64, n)
	for c := n - 1; c >= 0; c-- {
		x[c] = m[c][n]
		for k := c + 1; k < n; k++ {
			x[c] -= m[c][k] * x[k]
		}
		x[c] /= m[c][c]
	}
	return x, true
}
