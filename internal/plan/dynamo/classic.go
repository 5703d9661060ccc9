package dynamo

import (
	"fmt"
	"math"
)

// Interpolation has the values that the classic algorithm reads from a profile. [NewInterpolated] returns Dynamo's. Tests have
// others.
type Interpolation interface {
	// TTFT returns the milliseconds to the first token of a prompt, and PrefillThroughput the tokens per second of one GPU.
	TTFT(isl float64) float64
	PrefillThroughput(isl float64) float64
	// ITL returns the milliseconds between tokens of as many requests with a mean context.
	ITL(concurrency, context float64) float64
	// Best returns the highest use of the KV cache with at most as many milliseconds between tokens, its tokens per second of one
	// GPU, and its ITL. If there is none it returns the values for an empty cache.
	Best(itl, context float64) (throughput, reached, usage float64)
}

// resolution is the number of steps that the grid of the decode surface has in each direction.
const resolution = 100

// Interpolated is a profile between its measured points, as Dynamo's classic planner computes it: splines for prefill, and a grid of
// 100×100 for decode, from a smooth surface and, outside of the measured points, the nearest point. It is read only.
type Interpolated struct {
	ttft, prefill *spline
	maxKV, step   float64 // tokens of the cache; tokens of context between two rows
	// itl and throughput have a row for each context, and a column for each use of the cache.
	itl, throughput [resolution][resolution]float64
}

// NewInterpolated computes a profile's interpolation. It needs four prefill points and three decode points that are not on a line.
func NewInterpolated(p *Profile) (*Interpolated, error) {
	if err := p.Validate(); err != nil {
		return nil, fmt.Errorf("interpolate profile: %w", err)
	}
	var isl, ttft, throughput []float64
	for _, a := range p.Prefill {
		isl = append(isl, a.ISL)
		ttft = append(ttft, a.TTFT)
		throughput = append(throughput, a.Throughput)
	}
	s := &Interpolated{maxKV: p.MaxKVTokens}
	var err error
	s.ttft, err = newSpline(isl, ttft)
	if err != nil {
		return nil, fmt.Errorf("interpolate profile: prefill: %w", err)
	}
	s.prefill, err = newSpline(isl, throughput)
	if err != nil {
		return nil, fmt.Errorf("interpolate profile: prefill: %w", err)
	}
	if err := s.fill(p.Decode); err != nil {
		return nil, fmt.Errorf("interpolate profile: decode: %w", err)
	}
	return s, nil
}

// fill computes both grids of decode.
func (s *Interpolated) fill(measured []DecodePoint) error {
	points := make([]point, 0, len(measured))
	itl, throughput := make([]float64, 0, len(measured)), make([]float64, 0, len(measured))
	longest := 0.0
	for _, d := range measured {
		points = append(points, point{d.KVUsage, d.Context})
		itl = append(itl, d.ITL)
		throughput = append(throughput, d.Throughput)
		longest = max(longest, d.Context)
	}
	m, err := triangulate(points)
	if err != nil {
		return err
	}

	a, b := newSurface(m, itl), newSurface(m, throughput)
	s.step = longest / (resolution - 1)
	for row := range resolution {
		for column := range resolution {
			p := point{float64(column) / (resolution - 1), min(float64(row)*s.step, longest)}
			if i, weights := m.find(p); i >= 0 {
				s.itl[row][column] = a.within(i, weights)
				s.throughput[row][column] = b.within(i, weights)
				continue
			}
			nearest := m.nearest(p)
			s.itl[row][column] = itl[nearest]
			s.throughput[row][column] = throughput[nearest]
		}
	}
	return nil
}

// nearest returns the point at the least distance.
func (m *mesh) nearest(p point) (best int) {
	least := math.Inf(1)
	for i, q := range m.points {
		if d := math.Hypot(p.x-q.x, p.y-q.y); d < least {
			best, least = i, d
		}
	}
	return best
}

// TTFT implements [Interpolation].
func (s *Interpolated) TTFT(isl float64) float64 { return s.ttft.at(isl) }

// PrefillThroughput implements [Interpolation].
func (s *Interpolated) PrefillThroughput(isl float64) float64 { return s.prefill.at(isl) }

// ITL implements [Interpolation].
func (s *Interpolated) ITL(concurrency, context float64) float64 {
	return s.itl[s.row(context)][index(concurrency*context/s.maxKV*(resolution-1))]
}

// row returns the nearest row of a context.
func (s *Interpolated) row(context float64) int { return index(context / s.step) }

// index rounds a place on the grid, half to even as NumPy does, and moves it inside.
func index(v float64) int {
	if !(v > 0) {
		return 0
	}
	return int(math.RoundToEven(min(v, resolution-1)))
}

// Best implements [Interpolation]. It tries all columns from the last to the first, because the surface may rise and fall.
func (s *Interpolated) Best(itl, context float64) (throughput, reached, usage float64) {
	row := s.row(context)
	for i := resolution - 1; i > 0; i-- {
		if s.itl[row][i] <= itl {
			return s.throughput[row][i], s.itl[row][i], float64(i) / (resolution - 1)
		}
	}
	return s.throughput[row][0], s.itl[row][0], 0
}

// Corrections are the factors by which latencies were longer than in the profile. The zero Corrections corrects nothing.
type Corrections struct{ Prefill, Decode float64 }

// Correct compares the latencies of an interval, in milliseconds, with the profile: ttft of prompts with isl tokens, and itl of as many
// concurrent requests with a mean context. A latency of 0 is unknown and corrects nothing.
func Correct(i Interpolation, isl, ttft, concurrency, context, itl float64) Corrections {
	ratio := func(actual, expected float64) float64 {
		if !(actual > 0) || !(expected > 0) {
			return 0
		}
		return actual / expected
	}
	return Corrections{Prefill: ratio(ttft, i.TTFT(isl)), Decode: ratio(itl, i.ITL(concurrency, context))}
}

// Classic returns the workers that releases up to 1.0 ask for: for prefill, the prompt tokens per second divided by the throughput of
// the profile; for decode, the answers' tokens per second divided by the highest throughput that keeps the ITL. A TTFT that is shorter
// than the profile's lowers the prefill workers; a longer one comes from queues, and raises nothing. A longer ITL tightens the target.
func (c *Config) Classic(i Interpolation, now Replicas, t Traffic, k Corrections) Decision {
	d := Decision{Replicas: now}
	switch {
	case c.Mode == ModeAggregated:
		d.Reason = "classic_needs_disagg"
		return d
	case !t.ok():
		d.Reason = ReasonNoTraffic
		return d
	}

	prefill := 1.0
	if k.Prefill > 0 {
		prefill = min(1, k.Prefill)
	}
	itl := milliseconds(c.ITL)
	if k.Decode > 0 {
		itl /= k.Decode
	}
	prompts, answers := t.rps()*t.ISL*prefill, t.rps()*t.OSL
	first := i.PrefillThroughput(t.ISL)
	second, reached, usage := i.Best(itl, t.ISL+t.OSL/2)
	if !(first > 0) || !(second > 0) {
		d.Reason = ReasonModelNotReady
		return d
	}

	want := Replicas{
		Prefill: replicas(prompts, first*float64(max(1, c.PrefillGPUs))),
		Decode:  replicas(answers, second*float64(max(1, c.DecodeGPUs))),
	}
	d.Replicas = c.withinBudgets(want, now)
	d.Changed = d.Replicas != now
	d.Reason = ReasonScale
	d.Detail = fmt.Sprintf("prefill: %.0f of %.0f tokens/s; decode: %.0f of %.0f tokens/s at ITL %.1f ms and %.0f %% of the KV cache",
		prompts, first, answers, second, reached, 100*usage)
	return d
}
