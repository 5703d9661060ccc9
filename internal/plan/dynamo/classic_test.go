package dynamo

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func interpolated(t testing.TB) *Interpolated {
	t.Helper()
	s, err := NewInterpolated(published(t))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// The figures of Dynamo's classic interpolators on the published profile, computed with scipy.
func TestInterpolatedGolden(t *testing.T) {
	s := interpolated(t)
	for _, c := range []struct {
		isl, osl, itl          float64
		ttft, prefill          float64
		throughput, reached    float64
		usage, prefRPS, decRPS float64
	}{
		{3000, 300, 10, 60.4587, 49481.09, 4555.68, 9.7344, .1616, 16.4937, 15.1856},
		{3000, 150, 10, 60.4587, 49481.09, 4679.64, 9.7404, .1515, 16.4937, 31.1976},
		{4000, 150, 10, 83.5027, 48040.55, 3669.64, 9.8194, .2020, 12.0101, 24.4643},
		{3000, 150, 50, 60.4587, 49481.09, 6794.77, 41.7078, 1, 16.4937, 45.2985},
	} {
		throughput, reached, usage := s.Best(c.itl, c.isl+c.osl/2)
		name := fmt.Sprintf("%v/%v, ITL %v: ", c.isl, c.osl, c.itl)
		compare(t, 5e-6, []figure{
			{name + "TTFT", s.TTFT(c.isl), c.ttft}, {name + "prefill", s.PrefillThroughput(c.isl), c.prefill},
			{name + "prefill rps", s.PrefillThroughput(c.isl) / c.isl, c.prefRPS}, {name + "ITL reached", reached, c.reached},
			{name + "decode", throughput, c.throughput}, {name + "decode rps", throughput / c.osl, c.decRPS},
		})
		compare(t, 5e-4, []figure{{name + "KV usage", usage, c.usage}})
	}

	// Cells of both grids, from scipy 1.17.1 (griddata, cubic).
	compare(t, 1e-6, []figure{
		{"ITL of row 10, column 20", s.itl[10][20], 22.187061226479756},
		{"ITL of row 50, column 50", s.itl[50][50], 20.78483795139954},
		{"ITL of row 80, column 60", s.itl[80][60], 22.84797945484967},
		{"ITL of row 23, column 15", s.itl[23][15], 9.377898911578795},
		{"ITL of row 22, column 16", s.itl[22][16], 10.088553101400025},
		{"throughput of row 10, column 20", s.throughput[10][20], 11711.228932838736},
		{"throughput of row 50, column 50", s.throughput[50][50], 3355.089923509644},
		{"throughput of row 80, column 60", s.throughput[80][60], 2235.9920029069954},
	})
}

// The replicas of the classic algorithm at all rates of the published table.
func TestClassicGolden(t *testing.T) {
	s := interpolated(t)
	for _, c := range []struct {
		isl, osl float64
		want     map[Replicas][]float64
	}{
		{3000, 300, map[Replicas][]float64{{1, 1}: {5, 8, 10, 12, 15}, {2, 2}: {18, 20, 25, 30}, {3, 3}: {36, 40, 45}}},
		{3000, 150, map[Replicas][]float64{{1, 1}: {1, 5, 12, 15}, {2, 1}: {18, 25, 30}, {3, 2}: {36, 40, 45}}},
		{4000, 150, map[Replicas][]float64{{1, 1}: {1, 5, 8, 12}, {2, 1}: {15, 18, 20}, {3, 2}: {25, 30, 36}, {4, 2}: {40, 45}}},
	} {
		config := golden(200*time.Millisecond, 10*time.Millisecond)
		for want, rates := range c.want {
			for _, rps := range rates {
				got := config.Classic(s, Replicas{1, 1}, Traffic{Requests: rps * 60, ISL: c.isl, OSL: c.osl, Interval: time.Minute}, Corrections{})
				if got.Replicas != want {
					t.Errorf("%v/%v at %v rps: %+v, want %v", c.isl, c.osl, rps, got, want)
				}
			}
		}
	}
}

// stub is the interpolation of Dynamo's unit tests.
type stub struct{ prefill, decode float64 }

func (s stub) TTFT(float64) float64              { return 100 }
func (s stub) PrefillThroughput(float64) float64 { return s.prefill }
func (s stub) ITL(float64, float64) float64      { return 10 }
func (s stub) Best(itl, _ float64) (throughput, reached, usage float64) {
	if itl < 10 {
		return s.decode / 2, itl, 0.5
	}
	return s.decode, 10, 1
}

// Dynamo's unit tests of the classic algorithm.
func TestClassicOfStubs(t *testing.T) {
	for _, c := range []struct {
		what        string
		s           stub
		requests    float64
		change      func(*Config)
		corrections Corrections
		want        Replicas
	}{
		{"10 requests", stub{40000, 10000}, 10, func(*Config) {}, Corrections{}, Replicas{1, 1}},
		{"500 requests", stub{40000, 1000}, 500, func(*Config) {}, Corrections{}, Replicas{1, 2}},
		{"budget", stub{4000, 100}, 500, func(c *Config) { c.MaxGPUs = 3 }, Corrections{}, Replicas{1, 2}},
		{"least", stub{40000, 10000}, 10, func(c *Config) { c.MinEndpoint = 2 }, Corrections{}, Replicas{2, 2}},
		{"a long TTFT", stub{10000, 10000}, 500, func(*Config) {}, Corrections{Prefill: 2.5}, Replicas{3, 1}},
		{"a short TTFT", stub{10000, 10000}, 500, func(*Config) {}, Corrections{Prefill: 0.3}, Replicas{1, 1}},
		{"a long ITL", stub{40000, 1000}, 500, func(*Config) {}, Corrections{Decode: 2}, Replicas{1, 3}},
		{"more GPUs for each", stub{5000, 200}, 500, func(c *Config) { c.PrefillGPUs, c.DecodeGPUs = 2, 4 }, Corrections{}, Replicas{3, 2}},
	} {
		config := golden(500*time.Millisecond, 10*time.Millisecond)
		c.change(&config)
		traffic := Traffic{Requests: c.requests, ISL: 3000, OSL: 150, Interval: time.Minute}
		if got := config.Classic(c.s, Replicas{1, 1}, traffic, c.corrections); got.Replicas != c.want {
			t.Errorf("%s: %+v, want %v", c.what, got, c.want)
		}
	}

	got := Correct(stub{1, 1}, 3000, 250, 10, 3000, 5)
	if got != (Corrections{2.5, 0.5}) {
		t.Errorf("%+v", got)
	}
	if got := Correct(stub{1, 1}, 3000, 0, 10, 3000, math.NaN()); got != (Corrections{}) {
		t.Errorf("%+v of unknown latencies", got)
	}
}

// A triangulation of random points, and of a grid whose cells have four corners on a circle: no point is inside of a triangle's
// circle, and the triangles fill the hull.
func TestTriangulation(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 5))
	var random, grid []point
	for i := range 60 {
		random = append(random, point{r.Float64(), 10000 * r.Float64()})
		grid = append(grid, point{float64(i % 10), float64(i / 10)})
	}
	r.Shuffle(len(grid), func(i, j int) { grid[i], grid[j] = grid[j], grid[i] })
	for name, points := range map[string][]point{"random": random, "grid": grid} {
		m, err := triangulate(points)
		if err != nil {
			t.Fatal(name, err)
		}
		area := 0.0
		for _, c := range m.triangles {
			a, b, d := points[c.corner[0]], points[c.corner[1]], points[c.corner[2]]
			area += ((b.x-a.x)*(d.y-a.y) - (d.x-a.x)*(b.y-a.y)) / 2
			for i := range points {
				if !slices.Contains(c.corner[:], i) && m.circle(c.corner[0], c.corner[1], c.corner[2], i) > 0 {
					t.Errorf("%s: point %d is inside of the circle of %v", name, i, c.corner)
				}
			}
		}
		if name == "grid" && math.Abs(area-9*5) > 1e-9 {
			t.Errorf("the grid's triangles have an area of %v, want 45", area)
		}
	}
}

// A surface through values of a plane is the plane, and one through a parabola is near it.
func TestSurface(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 9))
	var points []point
	for range 80 {
		points = append(points, point{r.Float64(), r.Float64()})
	}
	m, err := triangulate(points)
	if err != nil {
		t.Fatal(err)
	}
	plane := func(p point) float64 { return 3 + 2*p.x - 5*p.y }
	parabola := func(p point) float64 { return p.x*p.x + p.x*p.y }
	for name, f := range map[string]func(point) float64{"plane": plane, "parabola": parabola} {
		values := make([]float64, len(points))
		for i, p := range points {
			values[i] = f(p)
		}
		s := newSurface(m, values)
		tolerance := map[string]float64{"plane": 1e-4, "parabola": 0.02}[name]
		for range 200 {
			p := point{0.2 + 0.6*r.Float64(), 0.2 + 0.6*r.Float64()}
			i, weights := m.find(p)
			if got := s.within(i, weights); math.Abs(got-f(p)) > tolerance {
				t.Errorf("%s at %v: %v, want %v", name, p, got, f(p))
			}
		}
	}
	if i, _ := m.find(point{5, 5}); i >= 0 {
		t.Errorf("a point outside of all is in triangle %d", i)
	}
}

// Profiles that have no interpolation are refused.
func TestProfilesAreChecked(t *testing.T) {
	for name, change := range map[string]func(*Profile){
		"no points":       func(p *Profile) { p.Prefill = nil },
		"few points":      func(p *Profile) { p.Prefill = p.Prefill[:3] },
		"a length twice":  func(p *Profile) { p.Prefill[1] = p.Prefill[0] },
		"a point twice":   func(p *Profile) { p.Decode[1] = p.Decode[0] },
		"one context":     func(p *Profile) { p.Decode = p.Decode[:7] },
		"no cache":        func(p *Profile) { p.MaxKVTokens = 0 },
		"a negative time": func(p *Profile) { p.Decode[3].ITL = -1 },
		"too many":        func(p *Profile) { p.Decode = make([]DecodePoint, 2000) },
	} {
		p := published(t)
		change(p)
		if s, err := NewInterpolated(p); s != nil || err == nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func BenchmarkInterpolated(b *testing.B) {
	p := published(b)
	for b.Loop() {
		if _, err := NewInterpolated(p); err != nil {
			b.Fatal(err)
		}
	}
}

// FuzzInterpolated: a profile is refused, or every cell of its grids is a number.
func FuzzInterpolated(f *testing.F) {
	f.Add([]byte{1, 1, 5, 9, 1, 7, 1, 9, 5, 6, 9, 2, 3, 4, 3})
	f.Add([]byte("0a0b1a1b2a2b3a3b4c4d5c5d6c6d"))
	f.Fuzz(func(t *testing.T, data []byte) {
		p := &Profile{MaxKVTokens: 1000}
		for i := range 4 {
			p.Prefill = append(p.Prefill, PrefillPoint{float64(100 * (i + 1)), float64(10 + i), 100})
		}
		for i := 0; i+3 <= len(data) && i < 300; i += 3 {
			p.Decode = append(p.Decode, DecodePoint{float64(data[i]) / 255, 100 * float64(data[i+1]), float64(data[i+2]) + 1, 100})
		}
		s, err := NewInterpolated(p)
		if err != nil {
			return
		}
		for row := range resolution {
			for column := range resolution {
				if !finite(s.itl[row][column]) || !finite(s.throughput[row][column]) {
					t.Fatalf("row %d, column %d: %v ms, %v", row, column, s.itl[row][column], s.throughput[row][column])
				}
			}
		}
	})
}
