package plan

import "math"

// bursts learns how much more the number of arriving requests varies than if they were independent, by the requests that miss the targets
// of a pool. The capacity model computes which share would miss at each of several dispersions, with the workers and at the rates that
// there were. The dispersion at which as many would have missed as did explains the misses, and the pool is planned for it. So the pool
// needs no longer than its next observation to know how many workers more keep to the targets, and has no margin where arrivals are
// independent. What else the capacity model takes too lightly, such as engines that share requests unevenly, counts as bursts too.
type bursts struct {
	expected [len(dispersions)]float64 // requests that would have missed; older ones count less
	missed   float64                   // requests that did
}

// dispersions are those that are compared. Misses on most loads of production show up to 16, and on a few more; a pool beyond the last one
// has more misses than are allowed.
var dispersions = [...]float64{1, 2, 4, 8, 16, 32, 64}

// observeBursts compares the misses of a step with those that were expected of the workers that are ready.
func (p *pool) observeBursts(missed float64, d *Demand, m *memory) {
	if p.engine.Timing == nil || p.memory.ready == 0 || d.Streams == 0 {
		return
	}
	b, keep := &p.memory.bursts, keepsMisses(d.Over)
	rate := max(leastRate, m.rate.At(1).Mean)
	shape := m.shape.capacity()
	for i, v := range dispersions {
		shape.Bursts = v
		share := p.engine.Missing(p.configured.Role, p.memory.ready, rate, shape, p.targets())
		b.expected[i] = b.expected[i]*keep + share*float64(d.Streams)
	}
	b.missed = b.missed*keep + missed
}

// dispersion returns the dispersion that explains the misses. Some requests are added of which as many miss as of independent ones, so that
// the first few do not count for much. They are leastMissed, with half of the allowed misses, and the more the greater the dispersion.
func (b *bursts) dispersion(allowed float64) float64 {
	before := leastMissed * allowed / 2
	missed := b.missed + before
	low := b.expected[0] + before
	for i := 1; i < len(dispersions); i++ {
		high := b.expected[i] + before*dispersions[i]
		if missed < high {
			return dispersions[i-1] * math.Pow(dispersions[i]/dispersions[i-1], max(0, missed-low)/(high-low))
		}
		low = high
	}
	return dispersions[len(dispersions)-1]
}

// dispersionOf returns the greatest dispersion that explains the misses of one of a model's pools. The same requests come to all pools, and
// the misses of one may have their cause in another: a request that waits for a decode worker gets its first token late.
func dispersionOf(pools []*pool) (most float64) {
	for _, p := range pools {
		most = max(most, p.memory.bursts.dispersion(p.allowed()))
	}
	return most
}
