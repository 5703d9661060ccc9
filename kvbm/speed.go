package kvbm

import (
	"math"
	"sync"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/onboard"
)

// speed estimates how fast a tier loads, by observation: the time of a load, the time of each of its blocks, and the loads in progress.
type speed struct {
	mu      sync.Mutex
	at      time.Time     // guarded by mu; of the last observation; zero before the first
	latency time.Duration // guarded by mu; of the first block
	block   time.Duration // guarded by mu; of each further one
	loading int           // guarded by mu; blocks that are being loaded
}

// learning is the weight of a new observation.
const learning = 0.1

// halfLife is the time after which an estimate counts half. A tier that was slow is not used, so nothing would be observed of it any
// more; after some time it is tried again.
const halfLife = 10 * time.Second

// begin counts blocks that are being loaded.
func (s *speed) begin(blocks int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.loading += blocks
}

// endLoad ends a load. One that has succeeded and was alone is an observation: others have waited for each other. A single block shows the
// latency, and several the time of each. A load that has failed after a long time shows that the tier is at least so slow.
func (s *speed) endLoad(blocks int, took time.Duration, succeeded bool, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.loading -= blocks
	switch {
	case succeeded && s.loading == 0:
		s.observe(blocks, took, now)
	case !succeeded && took > s.latency+time.Duration(blocks)*s.block:
		s.block = took / time.Duration(blocks)
		s.at = now
	}
}

// observe takes an observation into the estimates.
//
// Requires: mu.
func (s *speed) observe(blocks int, took time.Duration, now time.Time) {
	first := s.at.IsZero()
	s.at = now
	if first {
		s.block = max(took/time.Duration(blocks), 1)
		return
	}
	wrong := float64(took - s.latency - time.Duration(blocks)*s.block)
	if blocks > 1 {
		s.block += time.Duration(learning * wrong / float64(blocks))
	} else {
		s.latency += time.Duration(learning * wrong)
	}
	s.block = max(s.block, 1)
	s.latency = max(s.latency, 0)
}

// load returns how long blocks with so many tokens take now. No time is a nanosecond, because 0 in [fleet.TierLoad] means not known.
func (s *speed) load(tokens time.Duration, now time.Time) fleet.TierLoad {
	p := s.part(0, now)
	return fleet.TierLoad{Wait: p.Wait + p.Latency, Token: max(p.Block/tokens, 1)}
}

// part returns the time that a load of blocks would take now. As long as nothing was observed it takes no time, so that loads happen and
// are observed.
func (s *speed) part(blocks int, now time.Time) onboard.Part {
	s.mu.Lock()
	defer s.mu.Unlock()
	aged := math.Exp2(-max(0, now.Sub(s.at).Seconds()) / halfLife.Seconds())
	block := time.Duration(aged * float64(s.block))
	return onboard.Part{
		Blocks: blocks, Wait: time.Duration(s.loading) * block, Latency: time.Duration(aged * float64(s.latency)), Block: block,
	}
}
