package fleet

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// pace is the ratio of the time that prefills took to their estimate, over the latest prefills. It is a
// ratio of two sums and not a mean of ratios, because two prompts may end in one pass: the first is then
// observed with the time of both, and the second with none.
type pace struct {
	ratio atomic.Uint64 // the bits of a float64; 0 means 1

	mu              sync.Mutex
	took, estimated float64 // sums in seconds, in which older prefills count less; guarded by mu
}

const (
	// paceEven is how far from 1 a ratio must be to count. Equal ranks must have equal costs. Else the one
	// that seems a little faster gets every request that could go to any of them.
	paceEven = 0.85
	// paceBeyond bounds how many times its estimate a prefill counts. One whose end was missed would
	// otherwise make the rank seem slow for long.
	paceBeyond = 5
	// paceKeep is the share of the sums that stays at each observation: 0.98 weighs about the last 50.
	paceKeep = 0.98
	// paceStart is what both sums begin with, in seconds, so that the first prefills do not decide alone.
	paceStart = 1.0
	// paceLow and paceHigh bound the ratio.
	paceLow, paceHigh = 0.25, 8
)

// now returns the pace: 1 if it is nearly so.
func (p *pace) now() float64 {
	bits := p.ratio.Load()
	if bits == 0 {
		return 1
	}
	ratio := math.Float64frombits(bits)
	if ratio > paceEven && ratio < 1/paceEven {
		return 1
	}
	return ratio
}

// observe adds a prefill. One without an estimate is ignored.
func (p *pace) observe(took, estimated time.Duration) {
	if estimated <= 0 || took < 0 {
		return
	}

	p.mu.Lock()
	defer p.mu.Unlock()
	if p.estimated == 0 {
		p.took, p.estimated = paceStart, paceStart
	}
	p.took = p.took*paceKeep + min(took, paceBeyond*estimated).Seconds()
	p.estimated = p.estimated*paceKeep + estimated.Seconds()
	p.ratio.Store(math.Float64bits(min(max(p.took/p.estimated, paceLow), paceHigh)))
}
