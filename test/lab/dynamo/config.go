package dynamo

import (
	"errors"
	"fmt"
	"time"
)

// The optimization targets of load scaling.
const (
	TargetThroughput = "throughput"
	TargetLatency    = "latency"
	TargetLoad       = "load"
	TargetSLA        = "sla"
)

// The kinds of fleets.
const (
	ModeDisaggregated = "disagg"
	ModeAggregated    = "agg"
	ModePrefill       = "prefill"
	ModeDecode        = "decode"
)

// Config is the planner's configuration. Create it with [Defaults].
type Config struct {
	// Mode is the kind of fleet: disagg, agg, prefill or decode.
	Mode string
	// Target is the goal of load scaling: throughput, latency, load or sla. Throughput scaling needs sla.
	Target string
	// ScaleThroughput and ScaleLoad enable the two algorithms. Any target but sla turns the first off and the second on.
	ScaleThroughput, ScaleLoad bool

	// Interval is the time between two decisions on throughput, and LoadInterval between two on load.
	Interval, LoadInterval time.Duration
	// TTFT and ITL are the latencies to keep.
	TTFT, ITL time.Duration
	// Sensitivity is the share of a latency, in percent, that must suffice after a worker has gone; 0 to 100.
	Sensitivity int

	// Predictor is constant, arima or kalman. Log1p has it forecast logarithms.
	Predictor string
	Log1p     bool
	Kalman    Kalman

	// MinEndpoint is the least number of workers. PrefillMinEndpoint and DecodeMinEndpoint are the least numbers of one role; 0
	// means MinEndpoint.
	MinEndpoint, PrefillMinEndpoint, DecodeMinEndpoint int
	// MinGPUs and MaxGPUs bound the GPUs of all workers; a negative bound is none.
	MinGPUs, MaxGPUs int
	// PrefillGPUs and DecodeGPUs are the GPUs of one worker. Aggregated workers have DecodeGPUs.
	PrefillGPUs, DecodeGPUs int
	// MaxWatts bounds the power of all workers; 0 is no bound. PrefillWatts and DecodeWatts are the power of one worker.
	MaxWatts, PrefillWatts, DecodeWatts int

	Limits Limits
	// Context is the longest context of the model in tokens, which the easy targets compare queues with; 0 is unknown.
	Context int
	// Samples configures the regression.
	Samples Retention
	// Thresholds are the thresholds for the target load.
	Thresholds Thresholds
	// Release computes capacities as release 1.6.1 does, from one prompt at a time and all sizes of batches, instead of as the
	// sources of 2026-08 do.
	Release bool
}

// Thresholds are the limits of the target load: queued prompt tokens, and percent of the KV cache.
type Thresholds struct {
	QueueUp, QueueDown int
	KVUp, KVDown       float64
}

// Defaults returns the configuration that Dynamo uses if a user sets nothing.
func Defaults() Config {
	return Config{
		Mode: ModeDisaggregated, Target: TargetThroughput, ScaleThroughput: true,
		Interval: 180 * time.Second, LoadInterval: 5 * time.Second,
		TTFT: 500 * time.Millisecond, ITL: 50 * time.Millisecond, Sensitivity: 80,
		Predictor: "arima", Kalman: DefaultKalman(),
		MinEndpoint: 1, MinGPUs: -1, MaxGPUs: 8, PrefillGPUs: 1, DecodeGPUs: 1,
		Limits: DefaultLimits(), Samples: DefaultRetention(),
	}
}

// Validate reports everything that is wrong with the configuration.
func (c *Config) Validate() error {
	var errs []error
	oneOf := func(name, value string, values ...string) {
		for _, v := range values {
			if v == value {
				return
			}
		}
		errs = append(errs, fmt.Errorf("%s is %q: it must be one of %q", name, value, values))
	}
	atLeast := func(name string, value, least int) {
		if value < least {
			errs = append(errs, fmt.Errorf("%s is %d: it must be at least %d", name, value, least))
		}
	}

	oneOf("mode", c.Mode, ModeDisaggregated, ModeAggregated, ModePrefill, ModeDecode)
	oneOf("target", c.Target, TargetThroughput, TargetLatency, TargetLoad, TargetSLA)
	oneOf("predictor", c.Predictor, "constant", "arima", "kalman")
	atLeast("min endpoint", c.MinEndpoint, 0)
	atLeast("prefill GPUs", c.PrefillGPUs, 0)
	atLeast("decode GPUs", c.DecodeGPUs, 0)
	atLeast("max batched tokens", c.Limits.MaxBatchedTokens, 1)
	atLeast("max seqs", c.Limits.MaxSeqs, 1)
	atLeast("max KV tokens", c.Limits.MaxKVTokens, 1)
	if c.Interval <= 0 || c.LoadInterval <= 0 || c.TTFT <= 0 || c.ITL <= 0 {
		errs = append(errs, errors.New("intervals and latencies must be positive"))
	}
	if c.Sensitivity < 0 || c.Sensitivity > 100 {
		errs = append(errs, fmt.Errorf("sensitivity is %d: it must be 0 to 100", c.Sensitivity))
	}
	return errors.Join(append(errs, c.Samples.validate())...)
}

// throughput and load report which algorithms run: targets other than sla have load scaling alone.
func (c *Config) throughput() bool { return c.ScaleThroughput && c.Target == TargetSLA }

func (c *Config) load() bool { return c.ScaleLoad || c.Target != TargetSLA }

// least returns the least numbers of prefill and decode workers.
func (c *Config) least() Replicas {
	least := Replicas{Prefill: c.MinEndpoint, Decode: c.MinEndpoint}
	if c.PrefillMinEndpoint > 0 {
		least.Prefill = c.PrefillMinEndpoint
	}
	if c.DecodeMinEndpoint > 0 {
		least.Decode = c.DecodeMinEndpoint
	}
	return least
}

// Replicas is numbers of workers. Aggregated workers count as Decode.
type Replicas struct{ Prefill, Decode int }

// Decision is the result of an algorithm.
type Decision struct {
	Replicas
	// Changed reports whether the algorithm asks for anything. Replicas are the current ones if it does not.
	Changed bool
	// Reason is Dynamo's name for what happened, such as scale_up or insufficient_data.
	Reason string
	// Detail has the numbers behind the reason.
	Detail string
}
