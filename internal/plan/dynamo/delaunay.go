package dynamo

import (
	"errors"
	"math"
	"math/big"
	"slices"
)

// point is a place in the plane. Shares of a cache and numbers of tokens differ by orders of magnitude, and scipy does not scale
// them, so triangles are very thin: predicates that rounding could turn are computed exactly.
type point struct{ x, y float64 }

// mesh is a Delaunay triangulation. The corners of a triangle are counterclockwise.
type mesh struct {
	points    []point
	triangles []triangle
}

// triangle has the indices of its corners, and of the triangles beyond the edges that lie opposite of them; -1 is none.
type triangle struct{ corner, beyond [3]int }

// flat is the sine below which three points are on a line: rounding of coordinates gives about 1e-16.
const flat = 1e-12

// triangulate returns the triangulation of different points that are not all on a line. It finds, for each open edge, the point on
// its free side whose circle with the edge has no other point inside. That takes time in the square of the points.
func triangulate(points []point) (*mesh, error) {
	m := &mesh{points: points}
	a, b, ok := m.nearestPair()
	if !ok {
		return nil, errors.New("two points of the profile are the same")
	}

	owner := map[[2]int]int{} // of a directed edge: the triangle on its left
	open := [][2]int{{a, b}, {b, a}}
	for len(open) > 0 {
		e := open[len(open)-1]
		open = open[:len(open)-1]
		if _, done := owner[e]; done {
			continue
		}
		c := m.apex(e[0], e[1])
		if c < 0 {
			continue
		}
		i := len(m.triangles)
		corner := [3]int{e[0], e[1], c}
		for k := range 3 {
			edge := [2]int{corner[k], corner[(k+1)%3]}
			if _, taken := owner[edge]; taken {
				return nil, errors.New("the points of the profile have no triangulation")
			}
			owner[edge] = i
			open = append(open, [2]int{edge[1], edge[0]})
		}
		m.triangles = append(m.triangles, triangle{corner: corner})
	}

	if len(m.triangles) == 0 {
		return nil, errors.New("the points of the profile are all on a line")
	}
	m.link(owner)
	return m, nil
}

// link sets the neighbors of all triangles.
func (m *mesh) link(owner map[[2]int]int) {
	for i := range m.triangles {
		t := &m.triangles[i]
		for k := range 3 {
			edge := [2]int{t.corner[(k+2)%3], t.corner[(k+1)%3]} // as the neighbor has it
			j, ok := owner[edge]
			if !ok {
				j = -1
			}
			t.beyond[k] = j
		}
	}
}

// nearestPair returns two points that have none nearer: they are always connected. It is false if points are the same.
func (m *mesh) nearestPair() (a, b int, ok bool) {
	least := math.Inf(1)
	for i := range m.points {
		for j := range i {
			d := math.Hypot(m.points[i].x-m.points[j].x, m.points[i].y-m.points[j].y)
			if d < least {
				a, b = j, i
				least = d
			}
		}
	}
	return a, b, least > 0
}

// apex returns the third corner of the triangle on the left of an edge; -1 if there is none.
func (m *mesh) apex(a, b int) int {
	best := -1
	for c := range m.points {
		if c == a || c == b || !m.left(a, b, c) {
			continue
		}
		if best < 0 || m.inCircle(a, b, best, c) {
			best = c
		}
	}
	return best
}

// left reports whether c is on the left of the line from a to b, and not on it.
func (m *mesh) left(a, b, c int) bool { return m.turn(a, b, c) > 0 }

// turn is 1 if a, b and c turn left, -1 if they turn right, and 0 on a line.
func (m *mesh) turn(a, b, c int) int {
	p := m.points[a]
	q := m.points[b]
	r := m.points[c]
	l, s := (q.x-p.x)*(r.y-p.y), (r.x-p.x)*(q.y-p.y)
	switch d := l - s; {
	case math.Abs(d) <= flat*(math.Abs(l)+math.Abs(s)):
		return 0
	case d > 0:
		return 1
	}
	return -1
}

// inCircle reports whether d is inside of the circle through a, b and c, which turn left. Of four points on a circle, the answer is
// that for a paraboloid that is a little higher at points with a greater index: so all answers fit together.
func (m *mesh) inCircle(a, b, c, d int) bool {
	if s := m.circle(a, b, c, d); s != 0 {
		return s > 0
	}
	corners := [4]int{a, b, c, d}
	ranked := corners
	slices.Sort(ranked[:])
	for i := range ranked {
		at := slices.Index(corners[:], ranked[3-i])
		others := slices.Concat(corners[:at], corners[at+1:])
		turn := m.turn(others[0], others[1], others[2])
		if at%2 == 1 {
			turn = -turn
		}
		if turn != 0 {
			return turn < 0
		}
	}
	return false
}

// circle is the sign of the determinant that is positive if d is inside of the circle.
func (m *mesh) circle(a, b, c, d int) int {
	o := m.points[d]
	var x, y, z [3]float64
	for i, k := range [3]int{a, b, c} {
		x[i], y[i] = m.points[k].x-o.x, m.points[k].y-o.y
		z[i] = x[i]*x[i] + y[i]*y[i]
	}
	det, size := 0.0, 0.0
	for i := range 3 {
		j, k := (i+1)%3, (i+2)%3
		det += z[i] * (x[j]*y[k] - x[k]*y[j])
		size += z[i] * (math.Abs(x[j]*y[k]) + math.Abs(x[k]*y[j]))
	}
	if math.Abs(det) > 1e-14*size {
		return sign(det)
	}
	return m.exactCircle(a, b, c, d)
}

func sign(v float64) int {
	switch {
	case v > 0:
		return 1
	case v < 0:
		return -1
	}
	return 0
}

// exactCircle computes the determinant without rounding.
func (m *mesh) exactCircle(a, b, c, d int) int {
	number := func(v float64) *big.Rat { return new(big.Rat).SetFloat64(v) }
	minus := func(a, b *big.Rat) *big.Rat { return new(big.Rat).Sub(a, b) }
	times := func(a, b *big.Rat) *big.Rat { return new(big.Rat).Mul(a, b) }

	var x, y, z [3]*big.Rat
	for i, k := range [3]int{a, b, c} {
		x[i] = minus(number(m.points[k].x), number(m.points[d].x))
		y[i] = minus(number(m.points[k].y), number(m.points[d].y))
		z[i] = new(big.Rat).Add(times(x[i], x[i]), times(y[i], y[i]))
	}
	det := new(big.Rat)
	for i := range 3 {
		j, k := (i+1)%3, (i+2)%3
		det.Add(det, times(z[i], minus(times(x[j], y[k]), times(x[k], y[j]))))
	}
	return det.Sign()
}

// inside is the distance that a point may be outside of a triangle, in barycentric coordinates, to count as inside.
const inside = 100 * 2.220446049250313e-16

// find returns the triangle around a point and the point's barycentric coordinates; -1 outside of all.
func (m *mesh) find(p point) (int, [3]float64) {
	for i := range m.triangles {
		b := m.barycentric(i, p)
		if b[0] >= -inside && b[1] >= -inside && b[2] >= -inside {
			return i, b
		}
	}
	return -1, [3]float64{}
}

// barycentric returns the weights of a triangle's corners that give a point.
func (m *mesh) barycentric(i int, p point) [3]float64 {
	t := m.triangles[i].corner
	a := m.points[t[0]]
	b := m.points[t[1]]
	c := m.points[t[2]]
	det := (b.y-c.y)*(a.x-c.x) + (c.x-b.x)*(a.y-c.y)
	u := ((b.y-c.y)*(p.x-c.x) + (c.x-b.x)*(p.y-c.y)) / det
	v := ((c.y-a.y)*(p.x-c.x) + (a.x-c.x)*(p.y-c.y)) / det
	return [3]float64{u, v, 1 - u - v}
}
