package perfmodel

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"
	"time"
)

// Profile is the timing of an engine that Dynamo's profiler has measured: the time of single prompts of several
// lengths, and the time of decode steps at several context lengths and uses of the KV cache. Create it with
// [LoadProfile]. It is read only.
type Profile struct {
	prefill curve // x: new tokens of a pass; y: milliseconds

	// contexts are the measured mean contexts in tokens, ascending. decode has a curve for each of them. x: tokens
	// of all requests in the batch; y: milliseconds of a step.
	contexts []float64
	decode   []curve

	capacity float64 // of the KV cache, in tokens
	measured Measured
}

// Measured is the points of a profile as they were measured, before noise was smoothed. A rate that was not measured is 0.
type Measured struct {
	Prefill []MeasuredPrompt `json:"prefill"`
	Decode  []MeasuredStep   `json:"decode"`
	// KVTokens is the capacity of the KV cache.
	KVTokens float64 `json:"kv_tokens"`
}

// MeasuredPrompt is the time of one prompt.
type MeasuredPrompt struct {
	Tokens       float64 `json:"tokens"`
	Milliseconds float64 `json:"ms"`
	// Rate is prompt tokens per second of one GPU.
	Rate float64 `json:"rate"`
}

// MeasuredStep is the time of a decode step of requests with a mean Context in tokens, which fill a share of the KV cache.
type MeasuredStep struct {
	Usage        float64 `json:"usage"`
	Context      float64 `json:"context"`
	Milliseconds float64 `json:"ms"`
	// Rate is tokens of answers per second of one GPU.
	Rate float64 `json:"rate"`
}

// ProfileOf returns the profile of measured points.
func ProfileOf(m Measured) (*Profile, error) {
	prefill, decode := arrays{}, arrays{"max_kv_tokens": {m.KVTokens}}
	add := func(a arrays, name string, v float64) { a[name] = append(a[name], v) }
	for _, p := range m.Prefill {
		add(prefill, "prefill_isl", p.Tokens)
		add(prefill, "prefill_ttft", p.Milliseconds)
		add(prefill, "prefill_thpt_per_gpu", p.Rate)
	}
	for _, s := range m.Decode {
		add(decode, "x_kv_usage", s.Usage)
		add(decode, "y_context_length", s.Context)
		add(decode, "z_itl", s.Milliseconds)
		add(decode, "z_thpt_per_gpu", s.Rate)
	}
	p, err := newProfile(prefill, decode)
	if err != nil {
		return nil, fmt.Errorf("make profile: %w", err)
	}
	return p, nil
}

// Measured returns the points of the profile. They must not be changed.
func (p *Profile) Measured() Measured { return p.measured }

// KVTokens returns the capacity of the KV cache of the engine that was measured, in tokens.
func (p *Profile) KVTokens() int { return int(p.capacity) }

// Prefill returns the time of a prompt with as many new tokens. Between two measured lengths it is linear; beyond
// the first and the last length the line of the nearest two goes on.
func (p *Profile) Prefill(w Prefill) time.Duration {
	t := w.Input - w.Prefix
	if w.Requests <= 0 || t <= 0 {
		return 0
	}
	return profiled(p.prefill.at(float64(t)))
}

// Decode returns the time of a step with as many tokens in the batch, at the mean context of its requests. It is
// linear in both. Beyond the measured numbers of tokens the line of the nearest two goes on; beyond the measured
// contexts the nearest one is used.
func (p *Profile) Decode(w Decode) time.Duration {
	if w.Requests <= 0 {
		return 0
	}

	active, context := float64(w.Context), float64(w.Context)/float64(w.Requests)
	i, found := slices.BinarySearch(p.contexts, context)
	switch {
	case found || i == 0:
		return profiled(p.decode[i].at(active))
	case i == len(p.contexts):
		return profiled(p.decode[i-1].at(active))
	}

	// Between two measured contexts, interpolate their times.
	share := (context - p.contexts[i-1]) / (p.contexts[i] - p.contexts[i-1])
	return profiled(p.decode[i-1].at(active)*(1-share) + p.decode[i].at(active)*share)
}

// profiled returns a duration of at least a microsecond and at most an hour, because an extrapolated line can
// leave any bounds.
func profiled(ms float64) time.Duration {
	return milliseconds(min(max(ms, 0.001), float64(time.Hour/time.Millisecond)))
}

// point is one measurement.
type point struct{ x, y float64 }

// curve is at least one point, by ascending x, with straight lines between them. No point is lower than the one before it.
type curve []point

// at returns the value at x.
func (c curve) at(x float64) float64 {
	if len(c) == 1 {
		return c[0].y
	}

	// a and b are the points around x, or the nearest two.
	i, _ := slices.BinarySearchFunc(c, x, func(p point, x float64) int { return cmp.Compare(p.x, x) })
	i = min(max(i, 1), len(c)-1)
	a, b := c[i-1], c[i]
	return a.y + (b.y-a.y)*(x-a.x)/(b.x-a.x)
}

// monotone replaces values that fall by means of their neighbours, so that the curve rises or is level: the one that does is nearest to
// the measurements (isotonic regression by pooling adjacent violators). More work does not last shorter, so a value that falls is noise
// of the measurement. A planner that followed it would find an engine the faster the more it has to do.
func (c curve) monotone() {
	type pool struct{ mean, n float64 }
	var pools []pool
	for _, p := range c {
		pools = append(pools, pool{p.y, 1})
		for last := len(pools) - 1; last > 0 && pools[last-1].mean > pools[last].mean; last-- {
			a, b := pools[last-1], pools[last]
			pools[last-1] = pool{(a.mean*a.n + b.mean*b.n) / (a.n + b.n), a.n + b.n}
			pools = pools[:last]
		}
	}

	i := 0
	for _, pool := range pools {
		for range int(pool.n) {
			c[i].y = pool.mean
			i++
		}
	}
}

// newCurve returns the monotone curve nearest to points, which it sorts. Every x must be at least 0 and occur once, and every y
// must be positive. name is for errors.
func newCurve(name string, points []point) (curve, error) {
	for _, p := range points {
		if !(p.x >= 0 && p.x < 1e12) || !(p.y > 0 && p.y < 1e9) {
			return nil, fmt.Errorf("%s: %v takes %v ms: tokens must lie between 0 and 1e12, and milliseconds between 0 and 1e9", name,
				p.x, p.y)
		}
	}
	slices.SortFunc(points, func(a, b point) int { return cmp.Compare(a.x, b.x) })
	for i := 1; i < len(points); i++ {
		if points[i].x == points[i-1].x {
			return nil, fmt.Errorf("%s: %v was measured twice", name, points[i].x)
		}
	}
	curve(points).monotone()
	return points, nil
}

// LoadProfile reads a profile from a folder in the profiler's layout: prefill_raw_data and decode_raw_data as .npz or
// .json, or raw_data.npz in selected_prefill_interpolation and selected_decode_interpolation. A file may have
// 16 MB.
func LoadProfile(folder fs.FS) (*Profile, error) {
	prefill, err := readArrays(folder, "prefill_raw_data.npz", "prefill_raw_data.json", "selected_prefill_interpolation/raw_data.npz")
	if err != nil {
		return nil, fmt.Errorf("load profile: %w", err)
	}
	decode, err := readArrays(folder, "decode_raw_data.npz", "decode_raw_data.json", "selected_decode_interpolation/raw_data.npz")
	if err != nil {
		return nil, fmt.Errorf("load profile: %w", err)
	}
	p, err := newProfile(prefill, decode)
	if err != nil {
		return nil, fmt.Errorf("load profile: %w", err)
	}
	return p, nil
}

// newProfile returns the profile of the arrays of both files. It checks that their lengths agree.
func newProfile(prefill, decode arrays) (*Profile, error) {
	isl, ttft := prefill["prefill_isl"], prefill["prefill_ttft"]
	if len(isl) < 2 || len(isl) != len(ttft) {
		return nil, fmt.Errorf("prefill_isl has %d values and prefill_ttft %d: there must be as many of both, and two at least",
			len(isl), len(ttft))
	}
	p := &Profile{}
	var err error
	p.prefill, err = newCurve("prefill", paired(isl, ttft, 1))
	if err != nil {
		return nil, err
	}
	if err := p.readDecode(decode); err != nil {
		return nil, err
	}
	p.measured = measured(prefill, decode)
	return p, nil
}

// measured returns the points of arrays that newProfile has checked.
func measured(prefill, decode arrays) Measured {
	rate := func(list []float64, i, n int) float64 {
		if len(list) != n {
			return 0
		}
		return list[i]
	}

	out := Measured{KVTokens: decode["max_kv_tokens"][0]}
	prompts, rates := prefill["prefill_isl"], prefill["prefill_thpt_per_gpu"]
	for i, tokens := range prompts {
		out.Prefill = append(out.Prefill, MeasuredPrompt{tokens, prefill["prefill_ttft"][i], rate(rates, i, len(prompts))})
	}
	steps, rates := decode["z_itl"], decode["z_thpt_per_gpu"]
	for i, ms := range steps {
		out.Decode = append(out.Decode, MeasuredStep{
			decode["x_kv_usage"][i], decode["y_context_length"][i], ms, rate(rates, i, len(steps)),
		})
	}
	return out
}

// readDecode makes the curves of decode. The profiler measures the time between tokens for pairs of cache usage and
// context length; there is one curve for each context length.
func (p *Profile) readDecode(a arrays) error {
	usage, contexts := a["x_kv_usage"], a["y_context_length"]
	itl := a["z_itl"]
	if len(usage) == 0 || len(usage) != len(contexts) || len(usage) != len(itl) {
		return fmt.Errorf("x_kv_usage has %d values, y_context_length %d and z_itl %d: there must be as many of all",
			len(usage), len(contexts), len(itl))
	}
	if most := a["max_kv_tokens"]; len(most) != 1 || !(most[0] >= 1 && most[0] < 1e12) {
		return errors.New("max_kv_tokens must be one number of tokens")
	}

	// Usage is a share of the cache. A router counts tokens.
	p.capacity = a["max_kv_tokens"][0]
	points := paired(usage, itl, p.capacity)
	by := map[float64][]point{}
	for i, c := range contexts {
		if !(c > 0 && c < 1e12) {
			return fmt.Errorf("y_context_length %v: it must be positive", c)
		}
		by[c] = append(by[c], points[i])
	}

	for c := range by {
		p.contexts = append(p.contexts, c)
	}
	slices.Sort(p.contexts)
	for _, c := range p.contexts {
		line, err := newCurve(fmt.Sprintf("decode at context %v", c), by[c])
		if err != nil {
			return err
		}
		p.decode = append(p.decode, line)
	}
	return nil
}

// paired returns points of two lists of one length. Each x is multiplied by scale.
func paired(x, y []float64, scale float64) []point {
	out := make([]point, len(x))
	for i := range x {
		out[i] = point{x[i] * scale, y[i]}
	}
	return out
}

// finite reports whether v is a number, and not infinite.
func finite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }

// Speed returns the profile as two lines: through prompts of 500 and 8,000 tokens, and through steps of 10
// and 100 requests of 3,000 tokens each.
func (p *Profile) Speed() Speed {
	prefill := func(tokens int) time.Duration { return p.Prefill(Prefill{Requests: 1, Input: tokens}) }
	step := func(context int) time.Duration { return p.Decode(Decode{Requests: context / 3_000, Context: context}) }
	return Speed{Prefill: through(prefill, 500, 8_000), Decode: through(step, 30_000, 300_000), Transfer: DefaultTransfer()}
}

// through returns the line through two points of a function, or a flat line if the function falls.
func through(f func(tokens int) time.Duration, short, long int) Line {
	a, b := float64(f(short)), float64(f(long))
	token := max(0, (b-a)/float64(long-short))
	return Line{Base: time.Duration(max(0, a-token*float64(short))), Token: token}
}
