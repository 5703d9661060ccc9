package cost

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/stator-project/stator/internal/fleet"
)

// Weights are the knobs of the cost function. The zero value ranks everything equal; start
// from [Default] or [Dynamo].
type Weights struct {
	// Overlap multiplies the credit of every tier. Default 1: a cached block saves one block
	// of prefill. Raising it herds requests onto full caches.
	Overlap float64
	// Tier is a cached block's worth by where it lies: device, host, disk, external.
	// Default 1, 0.75, 0.25, 0.25.
	Tier [fleet.Tiers]float64
	// OverlapDecay lets the device credit shrink on ranks with much booked prefill.
	// Default 0: off.
	OverlapDecay float64
	// PrefillScale is how many blocks of decode one block of prefill weighs; Dynamo calls it
	// prefill_load_scale. Default 16.
	// Raising it favours time to first token, lowering it inter-token latency.
	PrefillScale float64
	// Ahead is how many blocks of this prompt one block of prefill weighs that is booked
	// there already. Default 1/8. Lowering it keeps prompts with their caches at the price of
	// waiting for what is ahead; raising it spreads them, and fills every cache with the same.
	Ahead float64
	// Decode weighs the blocks that running requests occupy. Default 1.
	Decode float64
	// Requests weighs booked requests, in blocks each. Default 0.
	Requests float64
	// Foreign weighs requests that the engine reports beyond those booked here, in blocks
	// each: other routers' and direct clients'. Default 8.
	Foreign float64
	// ReportAge is how old an engine's report may be and still count. Default 5 s.
	ReportAge time.Duration
}

// Default is what the kv policy uses. PrefillScale is 16 because a missed block costs
// far more than an occupied one: in Dynamo's published sweep of its own function, 16 to 32
// beat its default of 1 by 14 % of TTFT and 27 % of TPOT on a tool-agent trace. Ahead is
// 1/8 because a copy of a prefix evicts another that will be missed: on 3,000 requests of
// the Mooncake conversation trace, 4 workers of 3,000 blocks, 32 at a time and one prefill
// after another, it has 21.2 % hits and 357 ms mean TTFT where 1 has 17.1 % and 375 ms
// (round-robin 9.9 % and 440 ms), with a p99 of 706 and 729 ms; with 8 workers 27.7 % and
// 313 ms against 20.1 % and 344 ms.
func Default() Weights {
	return Weights{
		Overlap:      1,
		Tier:         [fleet.Tiers]float64{1, 0.75, 0.25, 0.25},
		PrefillScale: 16,
		Ahead:        0.125,
		Decode:       1,
		Foreign:      8,
		ReportAge:    5 * time.Second,
	}
}

// Dynamo is NVIDIA Dynamo's function with its default weights: a prefill load scale of 1,
// and nothing said of other routers' requests.
func Dynamo() Weights {
	w := Default()
	w.PrefillScale, w.Ahead, w.Foreign = 1, 1, 0
	return w
}

// Validate reports every weight that is negative or not a number.
func (w *Weights) Validate() error {
	var errs []error
	check := func(name string, v float64) {
		if !(v >= 0) || math.IsInf(v, 1) {
			errs = append(errs, fmt.Errorf("weight %s is %v: it must be a number of at least 0", name, v))
		}
	}
	check("overlap", w.Overlap)
	for t, v := range w.Tier {
		check("tier."+fleet.Tier(t).String(), v)
	}
	check("overlapDecay", w.OverlapDecay)
	check("prefillScale", w.PrefillScale)
	check("ahead", w.Ahead)
	check("decode", w.Decode)
	check("requests", w.Requests)
	check("foreign", w.Foreign)
	return errors.Join(errs...)
}
