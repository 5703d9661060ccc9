package dynamo

import (
	"fmt"
	"slices"
	"sort"
)

// spline is a cubic spline through at least four points whose third derivative is continuous at the second and the last but one
// ("not a knot"), as scipy's interp1d of kind cubic is.
type spline struct{ x, y, slope []float64 }

// leastForSpline is the number of points that a cubic spline needs.
const leastForSpline = 4

// newSpline returns the spline through points with different x, in any order.
func newSpline(x, y []float64) (*spline, error) {
	if len(x) < leastForSpline {
		return nil, fmt.Errorf("a cubic spline needs %d points: there are %d", leastForSpline, len(x))
	}
	order := make([]int, len(x))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		if x[a] < x[b] {
			return -1
		}
		return 1
	})

	s := &spline{}
	for _, i := range order {
		if n := len(s.x); n > 0 && s.x[n-1] == x[i] {
			return nil, fmt.Errorf("%v was measured twice", x[i])
		}
		s.x = append(s.x, x[i])
		s.y = append(s.y, y[i])
	}
	s.slope = s.slopes()
	return s, nil
}

// slopes solves the tridiagonal system of the slopes at the points.
func (s *spline) slopes() []float64 {
	n := len(s.x)
	dx, rise := make([]float64, n-1), make([]float64, n-1)
	for i := range dx {
		dx[i] = s.x[i+1] - s.x[i]
		rise[i] = (s.y[i+1] - s.y[i]) / dx[i]
	}

	// Row i is low·slope(i-1) + mid·slope(i) + high·slope(i+1) = right.
	low, mid := make([]float64, n), make([]float64, n)
	high, right := make([]float64, n), make([]float64, n)
	d := s.x[2] - s.x[0]
	mid[0], high[0] = dx[1], d
	right[0] = ((dx[0]+2*d)*dx[1]*rise[0] + dx[0]*dx[0]*rise[1]) / d
	for i := 1; i < n-1; i++ {
		low[i], high[i] = dx[i], dx[i-1]
		mid[i] = 2 * (dx[i-1] + dx[i])
		right[i] = 3 * (dx[i]*rise[i-1] + dx[i-1]*rise[i])
	}
	d = s.x[n-1] - s.x[n-3]
	low[n-1], mid[n-1] = d, dx[n-3]
	right[n-1] = (dx[n-2]*dx[n-2]*rise[n-3] + (2*d+dx[n-2])*dx[n-3]*rise[n-2]) / d

	for i := 1; i < n; i++ {
		f := low[i] / mid[i-1]
		mid[i] -= f * high[i-1]
		right[i] -= f * right[i-1]
	}
	for i := n - 1; i >= 0; i-- {
		if i < n-1 {
			right[i] -= high[i] * right[i+1]
		}
		right[i] /= mid[i]
	}
	return right
}

// at returns the value at x, which is moved into the range of the points.
func (s *spline) at(x float64) float64 {
	n := len(s.x)
	x = min(max(x, s.x[0]), s.x[n-1])
	i := min(max(sort.SearchFloat64s(s.x, x)-1, 0), n-2)

	// The cubic with these values and slopes at both ends.
	h := s.x[i+1] - s.x[i]
	t := (x - s.x[i]) / h
	return s.y[i]*(1+2*t)*(1-t)*(1-t) + s.y[i+1]*t*t*(3-2*t) + h*t*(1-t)*(s.slope[i]*(1-t)-s.slope[i+1]*t)
}
