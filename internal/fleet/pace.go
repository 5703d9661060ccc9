package fleet

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// pace is a ratio of sums that forget: what prefills took, over what was estimated. Sums, and not
// a mean of ratios, because two prompts may end in one pass: the first is told with the time of
// both.
type pace struct {
	ratio atomic.Uint64 // the bits of a float64; 0 means 1

	mu              sync.Mutex
	took, estimated float64 // seconds, guarded by mu
}

// What sums keep at each observation; what they begin with, in seconds, so that the first prompts
// do not decide; how many times its estimate a prefill counts, so that one whose end was missed
// does not; between what bounds a pace is believed; and what is no difference, because equal ranks
// must have equal costs, or one of them gets everything that could go anywhere.
const (
	paceEven          = 0.85
	paceBeyond        = 5
	paceKeep          = 0.98
	paceStart         = 1.0
	paceLow, paceHigh = 0.25, 8
)

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
