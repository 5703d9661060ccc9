package dynamo

import (
	"strings"
	"testing"
	"time"
)

// line returns a regression whose model is a known line: 10 ms and 0.01 ms for each prompt token; 5 ms and 0.1 ms for each thousand
// tokens in the cache.
func line(kind Kind) Regression {
	r := NewRegression(kind, DefaultRetention())
	for i := range 12 {
		s := Sample{Milliseconds: 1}
		prompt, context := float64(100*(i+1)), float64(1000*((i*5)%12+1))
		switch kind {
		case PrefillPass:
			s = Sample{PromptTokens: prompt, Milliseconds: 10 + prompt/100}
		case DecodePass:
			s = Sample{Requests: float64(i%4 + 1), ContextTokens: context, Milliseconds: 5 + context/10000}
		case MixedPass:
			s = Sample{PromptTokens: prompt, ContextTokens: context, Milliseconds: 5 + prompt/100 + context/10000}
		}
		r = r.Add(s)
	}
	return r
}

// loaded returns engines with the same load.
func loaded(n int, e Engine) []Engine {
	out := make([]Engine, n)
	for i := range out {
		out[i] = e
	}
	return out
}

// The target sla on disaggregated workers. A prompt of the samples' mean, 650 tokens, takes 16.5 ms; TTFT may be 40 ms.
func TestLoadScalingBySLA(t *testing.T) {
	base := LoadInput{
		Now: Replicas{2, 2}, PrefillModel: line(PrefillPass), DecodeModel: line(DecodePass),
		Prefill: loaded(2, Engine{QueuedPrompt: 2000}), Decode: loaded(2, Engine{DecodeContext: 130_000}), // 36.5 and 18 ms
	}
	for _, c := range []struct {
		what   string
		change func(*Config, *LoadInput)
		want   Replicas
		reason string
	}{
		{"as it should be", func(*Config, *LoadInput) {}, Replicas{2, 2}, ReasonRefused},
		{"disabled", func(c *Config, _ *LoadInput) { c.ScaleLoad = false }, Replicas{2, 2}, ReasonDisabled},
		{"still scaling", func(_ *Config, in *LoadInput) { in.ScalingInProgress = true }, Replicas{2, 2}, ReasonInProgress},
		{"nothing reports", func(_ *Config, in *LoadInput) { in.Prefill, in.Decode = nil, nil }, Replicas{2, 2}, ReasonNoData},
		{"one more engine than workers", func(_ *Config, in *LoadInput) { in.Decode = loaded(3, Engine{}) }, Replicas{2, 2}, ReasonMismatch},
		{"few samples", func(_ *Config, in *LoadInput) {
			in.PrefillModel = NewRegression(PrefillPass, DefaultRetention())
		}, Replicas{2, 2}, ReasonInsufficient},
		{"all TTFT above", func(_ *Config, in *LoadInput) { in.Prefill = loaded(2, Engine{QueuedPrompt: 3000}) }, Replicas{3, 2}, ReasonUp},
		{"one TTFT above", func(_ *Config, in *LoadInput) { in.Prefill[0].QueuedPrompt = 3000 }, Replicas{2, 2}, ReasonRefused},
		{"ITL above", func(_ *Config, in *LoadInput) {
			in.Decode = loaded(2, Engine{DecodeContext: 100_000, QueuedDecode: 100_000})
		},
			Replicas{2, 3}, ReasonUp},
		{"ITL above, but not with two tokens a step", func(_ *Config, in *LoadInput) {
			in.AcceptLength = 2
			in.Decode = loaded(2, Engine{DecodeContext: 200_000})
		}, Replicas{2, 2}, ReasonRefused},
		{"idle", func(_ *Config, in *LoadInput) { in.Prefill, in.Decode = loaded(2, Engine{}), loaded(2, Engine{}) }, Replicas{1, 1}, ReasonDown},
		{"the survivor's cache would be full", func(c *Config, in *LoadInput) {
			c.ITL = time.Second
			in.Prefill, in.Decode = loaded(2, Engine{}), loaded(2, Engine{DecodeContext: 480_000})
		}, Replicas{1, 2}, ReasonDown},
		{"throughput holds it", func(c *Config, in *LoadInput) {
			c.ScaleThroughput = true
			in.LowerBound = Replicas{2, 2}
			in.Prefill, in.Decode = loaded(2, Engine{}), loaded(2, Engine{})
		}, Replicas{2, 2}, ReasonCapped},
		{"throughput raises it", func(_ *Config, in *LoadInput) { in.LowerBound = Replicas{4, 1} }, Replicas{4, 2}, ReasonUp},
		{"budget", func(c *Config, in *LoadInput) {
			c.MaxGPUs = 4
			in.Prefill = loaded(2, Engine{QueuedPrompt: 3000})
		}, Replicas{2, 2}, ReasonRefused},
	} {
		config := golden(40*time.Millisecond, 20*time.Millisecond)
		config.ScaleLoad = true
		in := base
		in.Prefill, in.Decode = append([]Engine(nil), base.Prefill...), append([]Engine(nil), base.Decode...)
		c.change(&config, &in)
		got := config.LoadScaling(in)
		if got.Replicas != c.want || got.Reason != c.reason || got.Changed != (got.Replicas != in.Now) {
			t.Errorf("%s: %+v, want %v %s", c.what, got, c.want, c.reason)
		}
	}
}

// Aggregated workers: up if either latency is too long, down if both allow it.
func TestLoadScalingOfAggregatedWorkers(t *testing.T) {
	for _, c := range []struct {
		what   string
		engine Engine
		want   int
		reason string
	}{
		{"idle", Engine{}, 1, ReasonDown},
		{"long queues", Engine{QueuedPrompt: 10_000}, 3, ReasonUp},
		{"full caches", Engine{DecodeContext: 400_000}, 3, ReasonUp},
		{"the caches are too full for one", Engine{DecodeContext: 150_000}, 2, ReasonRefused},
		{"the queues are too long for one", Engine{QueuedPrompt: 4_000}, 2, ReasonRefused},
	} {
		config := golden(100*time.Millisecond, 40*time.Millisecond)
		config.Mode, config.ScaleLoad = ModeAggregated, true
		got := config.LoadScaling(LoadInput{Now: Replicas{0, 2}, Decode: loaded(2, c.engine), MixedModel: line(MixedPass)})
		if got.Decode != c.want || got.Reason != c.reason {
			t.Errorf("%s: %+v, want %d %s", c.what, got, c.want, c.reason)
		}
	}
}

// The easy targets compare queues and caches with thresholds.
func TestLoadScalingByThresholds(t *testing.T) {
	for _, c := range []struct {
		target, mode string
		engine       Engine
		want         Replicas
		reason       string
	}{
		{TargetThroughput, ModePrefill, Engine{QueuedPrompt: 10_000}, Replicas{3, 2}, ReasonUp},
		{TargetThroughput, ModePrefill, Engine{QueuedPrompt: 1_000}, Replicas{2, 2}, ReasonNoChange},
		{TargetThroughput, ModePrefill, Engine{QueuedPrompt: 999}, Replicas{1, 2}, ReasonDown},
		{TargetLatency, ModePrefill, Engine{QueuedPrompt: 1_000}, Replicas{3, 2}, ReasonUp},
		{TargetLatency, ModePrefill, Engine{QueuedPrompt: 1}, Replicas{2, 2}, ReasonNoChange},
		{TargetLatency, ModePrefill, Engine{}, Replicas{1, 2}, ReasonDown},
		{TargetLoad, ModePrefill, Engine{QueuedPrompt: 500}, Replicas{3, 2}, ReasonUp},
		{TargetLoad, ModePrefill, Engine{QueuedPrompt: 50}, Replicas{1, 2}, ReasonDown},
		{TargetThroughput, ModeDecode, Engine{DecodeContext: 60_000, QueuedDecode: 40_001}, Replicas{2, 3}, ReasonUp},
		{TargetThroughput, ModeDecode, Engine{DecodeContext: 100_000}, Replicas{2, 2}, ReasonNoChange},
		{TargetThroughput, ModeDecode, Engine{DecodeContext: 59_999}, Replicas{2, 1}, ReasonDown},
		{TargetLatency, ModeDecode, Engine{DecodeContext: 40_001}, Replicas{2, 3}, ReasonUp},
		{TargetLatency, ModeDecode, Engine{DecodeContext: 10_000}, Replicas{2, 2}, ReasonNoChange},
		{TargetLatency, ModeDecode, Engine{DecodeContext: 9_999}, Replicas{2, 1}, ReasonDown},
		{TargetLoad, ModeDecode, Engine{DecodeContext: 70_000}, Replicas{2, 3}, ReasonUp},
		{TargetLoad, ModeDecode, Engine{DecodeContext: 20_000}, Replicas{2, 1}, ReasonDown},
		{TargetThroughput, ModeAggregated, Engine{DecodeContext: 60_000, QueuedPrompt: 40_001}, Replicas{2, 3}, ReasonUp},
		{TargetThroughput, ModeAggregated, Engine{DecodeContext: 20_000, QueuedPrompt: 40_001}, Replicas{2, 2}, ReasonNoChange},
		{TargetThroughput, ModeDisaggregated, Engine{QueuedPrompt: 10_000, DecodeContext: 1}, Replicas{3, 1}, ReasonUp},
	} {
		config := Defaults()
		config.Target, config.Mode, config.Context = c.target, c.mode, 10_000
		config.Limits.MaxKVTokens = 100_000
		config.Thresholds = Thresholds{QueueUp: 500, QueueDown: 50, KVUp: 70, KVDown: 20}
		got := config.LoadScaling(LoadInput{Now: Replicas{2, 2}, Prefill: loaded(2, c.engine), Decode: loaded(2, c.engine)})
		if got.Replicas != c.want || got.Reason != c.reason {
			t.Errorf("%s %s %+v: %+v, want %v %s", c.target, c.mode, c.engine, got, c.want, c.reason)
		}
	}

	config := Defaults()
	got := config.LoadScaling(LoadInput{Now: Replicas{2, 2}, Prefill: loaded(2, Engine{}), Decode: loaded(2, Engine{DecodeContext: 1_500_000})})
	if got.Reason != ReasonInsufficient || got.Changed {
		t.Errorf("without the model's context: %+v", got)
	}
}

// Of samples that are alike, the oldest is dropped. Rare ones stay.
func TestRetention(t *testing.T) {
	r := NewRegression(PrefillPass, Retention{Most: 8, Buckets: 4, Ready: 2})
	r = r.Add(Sample{PromptTokens: 10_000, Milliseconds: 500})
	for i := range 50 {
		r = r.Add(Sample{PromptTokens: float64(100 + i%7), Milliseconds: float64(10 + i)})
	}
	if r.Len() != 8 || r.samples[0].PromptTokens != 10_000 || r.samples[7].Milliseconds != 59 {
		t.Errorf("%v", r.samples)
	}
	before := r.Len()
	for _, s := range []Sample{{PromptTokens: 5}, {Milliseconds: 5}, {PromptTokens: -1, Milliseconds: 1}} {
		r = r.Add(s)
	}
	if r.Len() != before || r.samples[7].Milliseconds != 59 {
		t.Errorf("%v after passes without work", r.samples)
	}
}

// A regression that only its mean explains, or that falls, is no model.
func TestRegressionsThatAreRefused(t *testing.T) {
	falling := NewRegression(DecodePass, DefaultRetention())
	same := NewRegression(PrefillPass, DefaultRetention())
	for i := range 10 {
		falling = falling.Add(Sample{Requests: float64(i + 1), ContextTokens: float64(100 * (i + 1)), Milliseconds: float64(100 - i)})
		same = same.Add(Sample{PromptTokens: 10, Milliseconds: 5})
	}
	for name, r := range map[string]Regression{"falling": falling, "without a slope": same} {
		if f, ok := r.Fit(); ok {
			t.Errorf("%s: %+v", name, f)
		}
	}
}

func TestConfigIsChecked(t *testing.T) {
	good := Defaults()
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
	bad := Config{Mode: "x", Target: "y", Predictor: "prophet", Sensitivity: 200, MinEndpoint: -1, Samples: Retention{1, 15, 1}}
	err := bad.Validate()
	for _, want := range []string{
		`mode is "x"`, `target is "y"`, `predictor is "prophet"`, "sensitivity is 200", "min endpoint is -1", "max seqs is 0",
		"latencies must be positive", "15 buckets",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
