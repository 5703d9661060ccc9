package dynamo

import (
	"bufio"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"
	"time"
)

// published reads the profile that Dynamo ships: see testdata/h200.txt.
func published(t testing.TB) *Profile {
	t.Helper()
	f, err := os.Open("testdata/h200.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()

	p := &Profile{}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		name, values, _ := strings.Cut(lines.Text(), " ")
		var a PrefillPoint
		var b DecodePoint
		switch name {
		case "prefill":
			_, err = fmt.Sscan(values, &a.ISL, &a.TTFT, &a.Throughput)
			p.Prefill = append(p.Prefill, a)
		case "decode":
			_, err = fmt.Sscan(values, &b.KVUsage, &b.Context, &b.ITL, &b.Throughput)
			p.Decode = append(p.Decode, b)
		case "kv":
			_, err = fmt.Sscan(values, &p.MaxKVTokens)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Validate(); err != nil {
		t.Fatal(err)
	}
	return p
}

// learned returns the regressions of the published profile.
func learned(t testing.TB) (prefill, decode Regression) {
	t.Helper()
	prefill, decode = NewRegression(PrefillPass, DefaultRetention()), NewRegression(DecodePass, DefaultRetention())
	a, b := published(t).Samples()
	for _, s := range a {
		prefill = prefill.Add(s)
	}
	for _, s := range b {
		decode = decode.Add(s)
	}
	return prefill, decode
}

// within reports whether a figure has a value, up to a relative error.
func within(got, want, relative float64) bool { return math.Abs(got-want) <= relative*math.Abs(want) }

// figure is one number to compare.
type figure struct {
	what      string
	got, want float64
}

func compare(t *testing.T, relative float64, figures []figure) {
	t.Helper()
	for _, f := range figures {
		if !within(f.got, f.want, relative) {
			t.Errorf("%s is %.9g, want %.9g", f.what, f.got, f.want)
		}
	}
}

// The fits of the current sources and of release 1.6.1 on the published profile.
func TestRegressionGolden(t *testing.T) {
	prefill, decode := learned(t)
	bent, ok := prefill.Fit()
	if !ok {
		t.Fatal("no fit of prefill passes")
	}
	plane, ok := decode.Fit()
	if !ok {
		t.Fatal("no fit of decode passes")
	}
	compare(t, 1e-6, []figure{
		{"prefill intercept", bent.Intercept, 18.343801844},
		{"prefill slope", bent.A, 0.0156849965},
		{"prefill bend", bent.Bend, 0.0083515780},
		{"prefill knot", bent.Knot, 5273.2593},
		{"decode intercept", plane.Intercept, 6.0904352718},
		{"decode by request", plane.A, 0.0203272756},
		{"decode by token", plane.B, 2.9340454713e-05},
	})
	compare(t, 2e-3, []figure{
		{"relative error of prefill", bent.RelativeError, 0.0360},
		{"deviation of decode", plane.Deviation, 3.675},
	})

	line, ok := prefill.Plain()
	if !ok {
		t.Fatal("no plain fit of prefill passes")
	}
	compare(t, 1e-6, []figure{{"plain intercept", line.Intercept, -1.605217}, {"plain slope", line.A, 0.022118131}})
	again, ok := decode.Plain()
	if !ok || again != plane {
		t.Errorf("the plain fit of decode passes is %+v, want %+v", again, plane)
	}
}

// golden is the configuration of the published figures.
func golden(ttft, itl time.Duration) Config {
	c := Defaults()
	c.Target, c.TTFT, c.ITL = TargetSLA, ttft, itl
	c.Limits = Limits{8192, 512, 945029}
	c.MaxGPUs = -1
	return c
}

// The capacities of the current sources, with the published profile.
func TestCapacityGolden(t *testing.T) {
	prefill, decode := learned(t)
	p, _ := prefill.Fit()
	d, _ := decode.Fit()
	for _, c := range []struct {
		isl, osl float64
		itl      time.Duration
		kind     Kind
		batch    int
		rps, ms  float64
	}{
		{3000, 150, 10, PrefillPass, 2, 16.874332, 118.5232},
		{4000, 150, 10, PrefillPass, 1, 12.332922, 81.0838},
		{3000, 150, 10, DecodePass, 34, 23.013930, 9.8491},
		{3000, 300, 10, DecodePass, 33, 11.211704, 9.8112},
		{4000, 150, 10, DecodePass, 26, 17.818778, 9.7276},
		{3000, 150, 50, DecodePass, 307, 51.129557, 40.029},
		{3000, 300, 50, DecodePass, 300, 25.053020, 39.9153},
	} {
		config := golden(500*time.Millisecond, c.itl*time.Millisecond)
		pass := p.Pass
		if c.kind == DecodePass {
			pass = d.Pass
		}
		got, ok := config.Capacity(c.kind, pass, Traffic{ISL: c.isl, OSL: c.osl})
		ms := got.TTFT + got.ITL
		if !ok || !got.Eligible || got.Batch != c.batch || !within(got.RPS, c.rps, 1e-6) || !within(ms, c.ms, 1e-5) {
			t.Errorf("%v/%v at ITL %d: %+v, want batch %d, %v rps, %v ms", c.isl, c.osl, c.itl, got, c.batch, c.rps, c.ms)
		}
	}
}

// The replicas of the current sources at 45 rps of 3000/300 within 10 ms.
func TestThroughputGolden(t *testing.T) {
	prefill, decode := learned(t)
	p, _ := prefill.Fit()
	d, _ := decode.Fit()
	c := golden(500*time.Millisecond, 10*time.Millisecond)
	got := c.Throughput(Replicas{1, 1}, Traffic{Requests: 45 * 180, ISL: 3000, OSL: 300, Interval: c.Interval}, Passes{Prefill: p.Pass, Decode: d.Pass})
	if got.Replicas != (Replicas{3, 5}) || !got.Changed || got.Reason != ReasonScale {
		t.Errorf("%+v, want 3 and 5", got)
	}
}

// The results that release 1.6.1 itself computes with the published profile.
func TestReleaseGolden(t *testing.T) {
	prefill, decode := learned(t)
	p, _ := prefill.Plain()
	d, _ := decode.Plain()
	for _, c := range []struct {
		isl, osl              float64
		ttft, itl             time.Duration
		prefill, ttftMS       float64
		decode, itlMS         float64
		at5, at10, at20, at30 Replicas
		at45                  Replicas
	}{
		{3000, 150, 500, 50, 15.444212, 64.7492, 51.129557, 40.0290, Replicas{1, 1}, Replicas{1, 1}, Replicas{2, 1}, Replicas{2, 1}, Replicas{3, 1}},
		{3000, 150, 200, 10, 15.444212, 64.7492, 23.427850, 9.9597, Replicas{1, 1}, Replicas{1, 1}, Replicas{2, 1}, Replicas{2, 2}, Replicas{3, 2}},
		{3000, 300, 200, 10, 15.444212, 64.7492, 11.420212, 9.9239, Replicas{1, 1}, Replicas{1, 1}, Replicas{2, 2}, Replicas{2, 3}, Replicas{3, 4}},
		{4000, 150, 200, 10, 11.511811, 86.8673, 18.241785, 9.8675, Replicas{1, 1}, Replicas{1, 1}, Replicas{2, 2}, Replicas{3, 2}, Replicas{4, 3}},
		{12000, 343, 2000, 25, 3.813779, 262.2071, 5.839624, 24.9627, Replicas{2, 1}, Replicas{3, 2}, Replicas{6, 4}, Replicas{8, 6}, Replicas{12, 8}},
	} {
		config := golden(c.ttft*time.Millisecond, c.itl*time.Millisecond)
		config.Release = true
		traffic := Traffic{ISL: c.isl, OSL: c.osl, Interval: time.Second}
		a, _ := config.Capacity(PrefillPass, p.Pass, traffic)
		b, _ := config.Capacity(DecodePass, d.Pass, traffic)
		name := fmt.Sprintf("%v/%v, %d and %d ms: ", c.isl, c.osl, c.ttft, c.itl)
		compare(t, 1e-5, []figure{
			{name + "prefill rps", a.RPS, c.prefill}, {name + "TTFT", a.TTFT, c.ttftMS},
			{name + "decode rps", b.RPS, c.decode}, {name + "ITL", b.ITL, c.itlMS},
		})

		for rps, want := range map[float64]Replicas{5: c.at5, 10: c.at10, 20: c.at20, 30: c.at30, 45: c.at45} {
			traffic.Requests = rps
			got := config.Throughput(Replicas{1, 1}, traffic, Passes{Prefill: p.Pass, Decode: d.Pass})
			if got.Replicas != want {
				t.Errorf("%s%v rps: %+v, want %v", name, rps, got, want)
			}
		}
	}
}

// The latencies that release 1.6.1 expects of queued work.
func TestEstimatesGolden(t *testing.T) {
	prefill, decode := learned(t)
	c := golden(500*time.Millisecond, 50*time.Millisecond)
	c.Release = true
	ttft, _ := c.EstimateTTFT(prefill, 10000, 0)
	hit, _ := c.EstimateTTFT(prefill, 10000, 0.5)
	itl, _ := c.EstimateITL(decode, 100000, 1)
	compare(t, 1e-6, []figure{
		{"TTFT behind 10000 tokens", ttft, 398.5305777},
		{"TTFT with half of them cached", hit, 198.4626807},
		{"ITL of 100000 tokens", itl, 13.1710478},
	})
}

// Dynamo's unit tests of the capacity search, with models that are computed by hand.
func TestCapacityOfStubs(t *testing.T) {
	one := func(s Sample) float64 { return s.PromptTokens }
	var calls []float64
	ms, ok := Limits{MaxBatchedTokens: 100}.Chunked(func(s Sample) float64 {
		calls = append(calls, s.PromptTokens)
		return s.PromptTokens
	}, 250, 0, 0)
	if !ok || ms != 250 || fmt.Sprint(calls) != "[100 50]" {
		t.Errorf("250 queued tokens take %v ms in passes of %v", ms, calls)
	}

	got, _ := Limits{8192, 4, 1_000_000}.Decode(func(Sample) float64 { return 20 },
		Asked{ISL: 100, OSL: 10, AcceptLength: 2, ITL: 15 * time.Millisecond})
	if !within(got.RPS, 40, 1e-12) || got.ITL != 10 || !got.Eligible {
		t.Errorf("decode: %+v, want 40 rps at 10 ms", got)
	}

	got, _ = Limits{8, 8, 1_000_000}.Aggregated(one, Asked{ISL: 2, OSL: 2})
	if got.RPS != 500 || got.TTFT != 3 || got.ITL != 1 || got.E2E != 4 {
		t.Errorf("aggregated: %+v, want 500 rps, 3, 1 and 4 ms", got)
	}

	cold, _ := Limits{400, 1, 1_000_000}.Prefill(one, Asked{ISL: 400})
	warm, _ := Limits{400, 1, 1_000_000}.Prefill(one, Asked{ISL: 400, HitRate: 0.5})
	if cold.TTFT != 400 || warm.TTFT != 200 || warm.RPS != 2*cold.RPS {
		t.Errorf("prefill: %+v, with half of it cached %+v", cold, warm)
	}

	sizes := batches(10000)
	if len(sizes) != 128 || sizes[0] != 1 || sizes[127] != 10000 {
		t.Errorf("sizes of batches: %v", sizes)
	}
	if got, ok := (Limits{8192, 8, 50}).Decode(one, Asked{ISL: 100, OSL: 10}); ok {
		t.Errorf("a context of 105 tokens in a cache of 50: %+v", got)
	}
	if got, _ := (Limits{400, 1, 1}).Prefill(one, Asked{ISL: 400, ITL: time.Second}); got.Eligible || got.RPS == 0 {
		t.Errorf("a prefill worker with a bound on its ITL: %+v", got)
	}
}

// An unreachable TTFT asks for no more workers than the rate needs.
func TestUnreachableTTFT(t *testing.T) {
	c := golden(time.Millisecond, 50*time.Millisecond)
	slow := func(Sample) float64 { return 100 }
	got := c.Throughput(Replicas{1, 1}, Traffic{Requests: 1, ISL: 100, OSL: 1, Interval: time.Second}, Passes{Prefill: slow, Decode: slow})
	if got.Replicas != (Replicas{1, 1}) {
		t.Errorf("%+v, want one of each", got)
	}
}

func TestThroughputReasons(t *testing.T) {
	ready := func(Sample) float64 { return 10 }
	traffic := Traffic{Requests: 100000, ISL: 100, OSL: 10, Interval: time.Second}
	for _, c := range []struct {
		what   string
		change func(*Config)
		p      Passes
		t      Traffic
		want   Decision
	}{
		{"both", func(*Config) {}, Passes{Prefill: ready, Decode: ready}, traffic, Decision{Replicas{13, 20}, true, ReasonScale, ""}},
		{"no model", func(*Config) {}, Passes{}, traffic, Decision{Replicas{2, 3}, false, ReasonModelNotReady, ""}},
		{"one model", func(*Config) {}, Passes{Decode: ready}, traffic, Decision{Replicas{2, 3}, false, ReasonPartnerNotReady, ""}},
		{"no traffic", func(*Config) {}, Passes{Prefill: ready, Decode: ready}, Traffic{}, Decision{Replicas{2, 3}, false, ReasonNoTraffic, ""}},
		{"easy target", func(c *Config) { c.Target = TargetLoad }, Passes{Prefill: ready, Decode: ready}, traffic, Decision{Replicas{2, 3}, false, ReasonDisabled, ""}},
		{"load, too", func(c *Config) { c.ScaleLoad = true }, Passes{Prefill: ready, Decode: ready}, traffic, Decision{Replicas{13, 20}, false, ReasonLowerBound, ""}},
		{"aggregated", func(c *Config) { c.Mode = ModeAggregated }, Passes{Mixed: ready}, traffic, Decision{Replicas{2, 20}, true, ReasonScale, ""}},
		{"budget", func(c *Config) { c.MaxGPUs = 11 }, Passes{Prefill: ready, Decode: ready}, traffic, Decision{Replicas{4, 7}, true, ReasonScale, ""}},
	} {
		config := golden(time.Second, time.Second)
		c.change(&config)
		got := config.Throughput(Replicas{2, 3}, c.t, c.p)
		got.Detail = ""
		if got != c.want {
			t.Errorf("%s: %+v, want %+v", c.what, got, c.want)
		}
	}
}
