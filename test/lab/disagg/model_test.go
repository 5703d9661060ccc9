package disagg

import (
	"math"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/perfmodel"
	"github.com/stator-project/stator/test/lab/profile"
)

// TestParallelTiming compares passes with figures that were computed by hand from the profile.
func TestParallelTiming(t *testing.T) {
	one, err := profile.Load()
	if err != nil {
		t.Fatal(err)
	}
	prompt := perfmodel.Prefill{Requests: 1, Input: 3151}
	batch := perfmodel.Decode{Requests: 49, Context: 146_851}
	ms := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

	for _, c := range []struct {
		name       string
		p          parallel
		prefill    float64
		decode     float64
		cacheLimit int
	}{
		{"TP 1", parallel{one, 1, measured}, 63.215, 9.9375, 945_029},
		// Prefill: 15.987 fixed, 47.228 / 2, and 64 all-reduces of 7 µs + 25.8 MB / 370 GB/s = 69.77 µs.
		// Decode: 2.707 fixed, 7.230 / 2, and 64 of 7 + 1.08 µs.
		{"TP 2", parallel{one, 2, measured}, 44.514, 6.840, 1_951_322},
		// 47.228 / 4 and 64 of 7 + 104.65 µs; 7.230 / 4 and 64 of 7 + 1.63 µs.
		{"TP 4", parallel{one, 4, measured}, 34.939, 5.067, 3_963_907},
		{"twice as fast", parallel{one, 1, physics{prefill: 2, decode: 4, transfer: 1}}, 31.607, 2.484, 945_029},
		// 63.215 without 15.987 ms.
		{"no launches", parallel{one, 1, physics{prefill: 1, decode: 1, noLaunch: true}}, 47.228, 9.9375, 945_029},
	} {
		prefill := ms(c.p.Prefill(prompt))
		decode := ms(c.p.Decode(batch))
		if math.Abs(prefill-c.prefill) > 0.02 || math.Abs(decode-c.decode) > 0.02 {
			t.Errorf("%s: prefill %.3f ms, decode %.3f; want %.3f and %.3f", c.name, prefill, decode, c.prefill, c.decode)
		}
		if got := cacheTokens(c.p.gpus); math.Abs(float64(got-c.cacheLimit)) > 2 {
			t.Errorf("%s: %d tokens of cache, want %d", c.name, got, c.cacheLimit)
		}
	}
}
