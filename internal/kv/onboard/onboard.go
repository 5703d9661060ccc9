// Package onboard decides how much of a cached prefix to load instead of computing it.
//
// Blocks on slower tiers are of use only where loading them is faster than computing them. That depends on the request: on the
// tiers that have its blocks and on how busy they are, and on the engine, for which long prompts are dearer than short ones. The node
// agent, the router and the simulator all ask [Cut].
//
// The package is pure.
package onboard

import "time"

// Part is a run of neighbouring blocks of a prefix on one tier.
type Part struct {
	// Blocks is their number.
	Blocks int
	// Wait is the time for which the tier is busy with earlier loads. Latency is the time of the first block on an idle tier, without
	// its transfer. Block is the time that each block takes.
	Wait, Latency, Block time.Duration
}

// Time returns how long it takes to load the first n blocks of a part.
func (p *Part) Time(n int) time.Duration {
	if n <= 0 {
		return 0
	}
	return p.Wait + p.Latency + time.Duration(n)*p.Block
}

// Cut returns how many of the first blocks of all parts should be loaded, and how long that takes; 0 if it is faster to compute
// all. saved returns how much computing time a prompt saves whose first n blocks of these parts need not be computed, which must not
// fall with n.
//
// Parts are loaded at the same time, because they are on different devices. A cut is at the end of a part: loading takes as long for
// each block of a part, and computing longer for each further one, because its tokens attend to more.
func Cut(parts []Part, saved func(n int) time.Duration) (blocks int, took time.Duration) {
	best := time.Duration(0)
	n, slowest := 0, time.Duration(0)
	for i := range parts {
		if parts[i].Blocks <= 0 {
			continue
		}
		n += parts[i].Blocks
		slowest = max(slowest, parts[i].Time(parts[i].Blocks))
		if gain := saved(n) - slowest; gain > best {
			best = gain
			blocks, took = n, slowest
		}
	}
	return blocks, took
}
