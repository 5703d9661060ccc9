package dynamo

import (
	"testing"
	"time"
)

// A fleet with the published profile: throughput scaling plans for the predicted rate, and is the lower bound of load scaling.
func TestStates(t *testing.T) {
	c := golden(200*time.Millisecond, 10*time.Millisecond)
	c.Predictor = "constant"
	s, err := c.NewState(published(t))
	if err != nil {
		t.Fatal(err)
	}
	if d, _ := c.NextThroughput(s, Replicas{1, 1}); d.Reason != ReasonNoTraffic || d.Changed {
		t.Errorf("without traffic: %+v", d)
	}

	s.Series = s.Series.Window(45*180, 3000, 300)
	d, after := c.NextThroughput(s, Replicas{1, 1})
	if d.Replicas != (Replicas{3, 5}) || !d.Changed || after.LowerBound != (Replicas{}) {
		t.Errorf("%+v, lower bound %v", d, after.LowerBound)
	}

	c.ScaleLoad = true
	d, after = c.NextThroughput(s, Replicas{1, 1})
	if d.Changed || after.LowerBound != (Replicas{3, 5}) || s.LowerBound != (Replicas{}) {
		t.Errorf("%+v, lower bound %v, before %v", d, after.LowerBound, s.LowerBound)
	}
	if d := c.NextLoad(after, Replicas{4, 5}, loaded(4, Engine{}), loaded(5, Engine{}), false); d.Replicas != (Replicas{3, 5}) || d.Reason != ReasonCapped {
		t.Errorf("idle engines: %+v, want 3 and 5", d)
	}
	if d := c.NextLoad(after, Replicas{4, 5}, loaded(4, Engine{}), loaded(5, Engine{}), true); d.Reason != ReasonInProgress {
		t.Errorf("while workers start: %+v", d)
	}

	c.Mode = ModeAggregated
	if d, _ := c.NextThroughput(s, Replicas{0, 2}); d.Reason != ReasonLowerBound || d.Decode < 5 || d.Prefill != 0 {
		t.Errorf("aggregated: %+v", d)
	}

	bad := published(t)
	bad.MaxKVTokens = 0
	if _, err := c.NewState(bad); err == nil {
		t.Error("a profile without a cache was accepted")
	}
	c.Predictor = "prophet"
	if _, err := c.NewState(nil); err == nil {
		t.Error("an unknown predictor was accepted")
	}
}

// Profiles that are not valid are refused.
func TestProfilesAreChecked(t *testing.T) {
	for name, change := range map[string]func(*Profile){
		"no points":       func(p *Profile) { p.Prefill = nil },
		"no cache":        func(p *Profile) { p.MaxKVTokens = 0 },
		"a negative time": func(p *Profile) { p.Decode[3].ITL = -1 },
		"too many":        func(p *Profile) { p.Decode = make([]DecodePoint, 2000) },
	} {
		p := published(t)
		change(p)
		if err := p.Validate(); err == nil {
			t.Errorf("%s: the profile was accepted", name)
		}
	}
}

// Only one role changes in a fleet of one role, and the budgets hold.
func TestFleetsOfOneRole(t *testing.T) {
	slow := func(Sample) float64 { return 1000 }
	traffic := Traffic{Requests: 100, ISL: 100, OSL: 10, Interval: time.Second}
	for _, c := range []struct {
		mode string
		p    Passes
		want Replicas
	}{
		{ModePrefill, Passes{Prefill: slow}, Replicas{2, 7}},
		{ModeDecode, Passes{Decode: slow}, Replicas{7, 2}},
		{ModeAggregated, Passes{Mixed: slow}, Replicas{7, 2}},
	} {
		config := golden(time.Hour, time.Hour)
		config.Mode = c.mode
		config.Limits.MaxSeqs = 1
		config.MaxGPUs = 4
		config.MaxWatts, config.PrefillWatts, config.DecodeWatts = 1500, 700, 700
		if got := config.Throughput(Replicas{7, 7}, traffic, c.p); got.Replicas != c.want {
			t.Errorf("%s: %+v, want %v", c.mode, got, c.want)
		}
	}
}

// FuzzBudget: a pair fits under the bounds, or it is nothing because the least numbers do not fit, or it is unchanged because the
// workers are too large for the band.
func FuzzBudget(f *testing.F) {
	f.Add(10, 10, 1, 1, -1, 5, 2, 1)
	f.Add(0, 0, 4, 4, 9, 11, 1, 1)
	f.Fuzz(func(t *testing.T, p, d, pGPU, dGPU, low, high, pMin, dMin int) {
		for _, v := range []int{p, d, pGPU, dGPU, pMin, dMin} {
			if v < 0 || v > 1000 {
				return
			}
		}
		if low > 1e6 || high > 1e6 || high >= 0 && low > high || pGPU == 0 || dGPU == 0 || p < pMin || d < dMin {
			return
		}
		want, gpus, least := Replicas{p, d}, Replicas{pGPU, dGPU}, Replicas{pMin, dMin}
		got := Budget{low, high}.Pair(want, gpus, least)
		switch total := gpusOf(got, gpus); {
		case got == want && (high < 0 || total <= high):
		case got == (Replicas{}) && high >= 0 && gpusOf(least, gpus) > high:
		case got.Prefill < pMin || got.Decode < dMin:
			t.Errorf("%v of %v is below the least %v", got, want, least)
		case high >= 0 && total > high:
			t.Errorf("%v of %v has %d GPUs, more than %d", got, want, total, high)
		case low >= 0 && gpusOf(want, gpus) < low && total < low:
			t.Errorf("%v of %v has %d GPUs, fewer than %d", got, want, total, low)
		}

		bound := max(0, high)
		powered, _ := Power(want, Replicas{pMin, dMin}, gpus, least, bound)
		if powered.Prefill > p || powered.Decode > d {
			t.Errorf("power raised %v to %v", want, powered)
		}
		if gpusOf(least, gpus) <= bound && gpusOf(powered, gpus) > bound {
			t.Errorf("%v needs more than %d W", powered, bound)
		}
	})
}
