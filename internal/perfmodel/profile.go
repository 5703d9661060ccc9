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

// Profile is the timing of an engine that was measured beforehand, in the files that Dynamo's
// profiler writes: how long prompts of several lengths took alone, and how long decode steps took
// at several contexts and fillings of the cache. Create it with [LoadProfile]. It is read only.
type Profile struct {
	prefill curve // new tokens of a pass, milliseconds
	// What a decode step takes at each context that was measured, over the tokens of all requests
	// in the batch. Invariant: contexts rise, and there is a curve for each.
	contexts []float64
	decode   []curve
}

// Prefill is the time of a prompt of as many new tokens: linear between the lengths that were
// measured, and beyond them as between the last two.
func (p *Profile) Prefill(w Prefill) time.Duration {
	t := w.Input - w.Prefix
	if w.Requests <= 0 || t <= 0 {
		return 0
	}
	return profiled(p.prefill.at(float64(t)))
}

// Decode is the time of a step of as many tokens in the batch, at the requests' mean context:
// linear in both, beyond the fillings as between the last two, and beyond the contexts as at the
// last one.
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
	share := (context - p.contexts[i-1]) / (p.contexts[i] - p.contexts[i-1])
	return profiled(p.decode[i-1].at(active)*(1-share) + p.decode[i].at(active)*share)
}

// profiled bounds what extrapolation may come to.
func profiled(ms float64) time.Duration {
	return milliseconds(min(max(ms, 0.001), float64(time.Hour/time.Millisecond)))
}

// point is something measured.
type point struct{ x, y float64 }

// curve is points by rising x, at least one, with lines between.
type curve []point

// at is the value at x. A curve falls beyond its ends no further than its lowest point: where the
// last two are noise, their line would run below nothing.
func (c curve) at(x float64) float64 {
	if len(c) == 1 {
		return c[0].y
	}
	i, _ := slices.BinarySearchFunc(c, x, func(p point, x float64) int { return cmp.Compare(p.x, x) })
	i = min(max(i, 1), len(c)-1)
	a, b := c[i-1], c[i]
	y := a.y + (b.y-a.y)*(x-a.x)/(b.x-a.x)
	if x > b.x && y < b.y {
		return b.y
	}
	return y
}

// newCurve sorts points. Numbers must be finite, x at least 0 and y positive, and no x come twice.
func newCurve(name string, points []point) (curve, error) {
	for _, p := range points {
		if !(p.x >= 0 && p.x < 1e12) || !(p.y > 0 && p.y < 1e9) {
			return nil, fmt.Errorf("%s: %v takes %v ms: neither may be negative, nor out of all reason", name, p.x, p.y)
		}
	}
	slices.SortFunc(points, func(a, b point) int { return cmp.Compare(a.x, b.x) })
	for i := 1; i < len(points); i++ {
		if points[i].x == points[i-1].x {
			return nil, fmt.Errorf("%s: %v was measured twice", name, points[i].x)
		}
	}
	return points, nil
}

// LoadProfile reads a profile from a folder: prefill_raw_data and decode_raw_data as .npz or .json,
// or raw_data.npz in selected_prefill_interpolation and selected_decode_interpolation, as the
// profiler lays them. Files may have 16 MB.
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

// newProfile makes a profile of the arrays of both files, and checks that they fit together.
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
	return p, p.readDecode(decode)
}

// readDecode makes the curves of decode: time between tokens over cache usage, one for each context length.
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

	points := paired(usage, itl, a["max_kv_tokens"][0])
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

// paired makes points of two lists of one length.
func paired(x, y []float64, scale float64) []point {
	out := make([]point, len(x))
	for i := range x {
		out[i] = point{x[i] * scale, y[i]}
	}
	return out
}

// finite reports whether v is a number, and not infinite.
func finite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }

// Speed is the profile as two lines: through prompts of 500 and 8,000 tokens, and through steps of 10
// and 100 requests of 3,000 tokens each.
func (p *Profile) Speed() Speed {
	prefill := func(tokens int) time.Duration { return p.Prefill(Prefill{Requests: 1, Input: tokens}) }
	step := func(context int) time.Duration { return p.Decode(Decode{Requests: context / 3_000, Context: context}) }
	return Speed{Prefill: through(prefill, 500, 8_000), Decode: through(step, 30_000, 300_000)}
}

// through is the line through two points of a function, or a flat one where it falls.
func through(f func(tokens int) time.Duration, short, long int) Line {
	a, b := float64(f(short)), float64(f(long))
	token := max(0, (b-a)/float64(long-short))
	return Line{Base: time.Duration(max(0, a-token*float64(short))), Token: token}
}
