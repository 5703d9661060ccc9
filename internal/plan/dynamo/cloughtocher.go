package dynamo

import "math"

// surface is a smooth function through values at the points of a mesh: cubic on three parts of each triangle, by Clough and
// Tocher. Its gradients at the points minimize the curvature along the edges (G. Nielson 1983, R. Renka 1984), and its derivative
// across an edge is linear in the direction between the middles of the two triangles. So it equals scipy's
// CloughTocher2DInterpolator (P. Alfeld 1984, G. Farin 1986).
type surface struct {
	mesh      *mesh
	values    []float64
	gradients []point
}

const (
	gradientRounds    = 400
	gradientTolerance = 1e-6
)

// newSurface returns the surface through values, one for each point of the mesh.
func newSurface(m *mesh, values []float64) *surface {
	s := &surface{mesh: m, values: values, gradients: make([]point, len(values))}
	neighbors := m.neighbors()
	for range gradientRounds {
		worst := 0.0
		for i := range s.gradients {
			worst = max(worst, s.improve(i, neighbors[i]))
		}
		if worst < gradientTolerance {
			break
		}
	}
	return s
}

// neighbors returns, for each point, the points that share an edge with it.
func (m *mesh) neighbors() [][]int {
	seen := map[[2]int]bool{}
	out := make([][]int, len(m.points))
	for _, t := range m.triangles {
		for k := range 3 {
			a, b := t.corner[k], t.corner[(k+1)%3]
			for _, e := range [2][2]int{{a, b}, {b, a}} {
				if !seen[e] {
					seen[e] = true
					out[e[0]] = append(out[e[0]], e[1])
				}
			}
		}
	}
	return out
}

// improve sets the gradient of a point to the best one for the gradients of its neighbors. It returns the relative change.
func (s *surface) improve(i int, neighbors []int) float64 {
	var xx, xy, yy, sx, sy float64
	p := s.mesh.points[i]
	for _, j := range neighbors {
		q, g := s.mesh.points[j], s.gradients[j]
		ex, ey := q.x-p.x, q.y-p.y
		cube := math.Pow(ex*ex+ey*ey, 1.5)
		xx += 4 * ex * ex / cube
		xy += 4 * ex * ey / cube
		yy += 4 * ey * ey / cube
		along := 6*(s.values[i]-s.values[j]) + 2*(ex*g.x+ey*g.y)
		sx += along * ex / cube
		sy += along * ey / cube
	}
	det := xx*yy - xy*xy
	if det == 0 {
		return 0
	}

	old := s.gradients[i]
	next := point{(xy*sy - yy*sx) / det, (xy*sx - xx*sy) / det}
	s.gradients[i] = next
	change := max(math.Abs(next.x-old.x), math.Abs(next.y-old.y))
	return change / max(1, math.Abs(next.x), math.Abs(next.y))
}

// within returns the value in a triangle at barycentric coordinates. The triangle is divided at its middle, v. Control points
// are named as the Bernstein polynomials are: abv is between the corners a, b and the middle.
func (s *surface) within(i int, b [3]float64) float64 {
	t := s.mesh.triangles[i].corner
	var f [3]float64        // at the corners
	var to, from [3]float64 // control points of edge k, which begins at corner k: after its beginning, and before its end
	var inner [3]float64    // between the corner and the middle
	var across [3]float64   // between the edge that lies opposite of corner k and the middle
	var nearMiddle [3]float64
	for k := range 3 {
		n := (k + 1) % 3
		p, q := s.mesh.points[t[k]], s.mesh.points[t[n]]
		g, h := s.gradients[t[k]], s.gradients[t[n]]
		f[k] = s.values[t[k]]
		to[k] = s.values[t[k]] + (g.x*(q.x-p.x)+g.y*(q.y-p.y))/3
		from[k] = s.values[t[n]] - (h.x*(q.x-p.x)+h.y*(q.y-p.y))/3
	}
	for k := range 3 {
		inner[k] = (to[k] + from[(k+2)%3] + f[k]) / 3
	}
	for k := range 3 {
		e, n := (k+1)%3, (k+2)%3 // the edge from corner e to corner n lies opposite
		across[k] = (s.direction(i, k)*(-f[e]+3*to[e]-3*from[e]+f[n]) + (-f[e] + 2*to[e] - from[e] + inner[n] + inner[e])) / 2
	}
	for k := range 3 {
		nearMiddle[k] = (across[(k+1)%3] + across[(k+2)%3] + inner[k]) / 3
	}
	middle := (nearMiddle[0] + nearMiddle[1] + nearMiddle[2]) / 3

	// The part of the triangle is the one whose weight of a corner is 0.
	least := min(b[0], b[1], b[2])
	v := 3 * least
	sum := v * v * v * middle
	for k := range 3 {
		n := (k + 1) % 3
		x, y := b[k]-least, b[n]-least
		sum += x*x*x*f[k] + 3*x*x*y*to[k] + 3*x*y*y*from[k]
		sum += 3*x*x*v*inner[k] + 3*x*v*v*nearMiddle[k] + 6*x*y*v*across[(k+2)%3]
	}
	return sum
}

// direction returns the direction in which the derivative across the edge opposite of a corner is linear: as a share of the edge,
// towards the middle of the neighbor. Without a neighbor it points to the middle of the edge.
func (s *surface) direction(i, k int) float64 {
	j := s.mesh.triangles[i].beyond[k]
	if j < 0 {
		return -0.5
	}
	var middle point
	for _, c := range s.mesh.triangles[j].corner {
		middle.x += s.mesh.points[c].x / 3
		middle.y += s.mesh.points[c].y / 3
	}
	b := s.mesh.barycentric(i, middle)
	e, n := (k+1)%3, (k+2)%3
	return (2*b[n] + b[e] - 1) / (2 - 3*b[n] - 3*b[e])
}
