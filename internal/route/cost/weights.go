package cost

import "github.com/stator-project/stator/internal/fleet"

// Weights are the knobs of NVIDIA Dynamo's function. The zero value ranks everything equal;
// start from [Dynamo].
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
	// prefill_load_scale. Default 1; 16 to 32 were better in every comparison that was seen.
	// Raising it favours time to first token, lowering it inter-token latency.
	PrefillScale float64
	// Decode weighs the blocks that running requests occupy. Default 1.
	Decode float64
	// Requests weighs booked requests, in blocks each. Default 0.
	Requests float64
}

// Dynamo has Dynamo's default weights.
func Dynamo() *Weights {
	return &Weights{
		Overlap:      1,
		Tier:         [fleet.Tiers]float64{1, 0.75, 0.25, 0.25},
		PrefillScale: 1,
		Decode:       1,
	}
}

// String names the function.
func (w *Weights) String() string { return NameDynamo }
