package propose

import "github.com/stator-project/stator/internal/fleet"

// RateOf returns the rate of one division of GPUs among separate roles.
func RateOf(q Question, prefill, decode int) float64 {
	p := Proposal{Pools: []Pool{{fleet.Prefill, prefill, q.Engines[0]}, {fleet.Decode, decode, q.Engines[0]}}}
	return p.most(&q)
}
