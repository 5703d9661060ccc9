package cost

import "github.com/stator-project/stator/internal/fleet"

// Weights are the weights of NVIDIA Dynamo's function, in blocks. The zero value ranks all candidates
// equal; start from [Dynamo].
type Weights struct {
	// Overlap multiplies the credit of every tier. Default 1: a cached block saves one block of prefill.
	// Raising it sends more requests to ranks with full caches.
	Overlap float64
	// Tier is a cached block's worth by its tier: device, host, disk, external. Default 1, 0.75, 0.25,
	// 0.25.
	Tier [fleet.Tiers]float64
	// OverlapDecay makes the device credit smaller on ranks with much booked prefill. Default 0: off.
	OverlapDecay float64
	// PrefillLoadScale is the number of blocks of decode that one block of prefill weighs. Default 1; 16 to
	// 32 were better in every comparison that we made. Raising it favours the time to first token, and
	// lowering it the time between tokens.
	PrefillLoadScale float64
	// Decode weighs the blocks that running requests occupy. Default 1.
	Decode float64
	// Requests weighs booked requests, in blocks each. Default 0.
	Requests float64
}

// Dynamo returns Dynamo's function with Dynamo's default weights.
func Dynamo() *Weights {
	return &Weights{Overlap: 1, Tier: defaultTier, PrefillLoadScale: 1, Decode: 1}
}

// String returns the function's name in configurations and flags.
func (w *Weights) String() string { return NameDynamo }
