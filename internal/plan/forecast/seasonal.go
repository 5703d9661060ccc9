package forecast

import (
	"math"
	"slices"
)

// seasonal smooths what remains of a series without its season. The season is kept in slots that are coarser than steps. It is
// learned from whole seasons, so before the first one is over the model is holt.
type seasonal struct {
	season, slots  int
	multiplicative bool

	step int // of the season
	rest holt
	// pattern is the amount that each slot adds to the level, or multiplies it with; nil before the first season is over. It
	// never changes.
	pattern []float64
	// sums and counts cover the current season.
	sums   []float64
	counts []uint32
}

const (
	defaultSlots = 96
	seasonWeight = 0.4  // of the newest season
	leastFactor  = 0.02 // of a slot, so that the level is finite
)

// newSeasonal returns a model for the options' season.
func newSeasonal(o Options) seasonal {
	slots := o.Slots
	if slots == 0 {
		slots = defaultSlots
	}
	slots = min(slots, o.Season)
	return seasonal{
		season: o.Season, slots: slots, multiplicative: o.Multiplicative, rest: newHolt(quickly),
		sums: make([]float64, slots), counts: make([]uint32, slots),
	}
}

func (s seasonal) observe(v float64) model {
	if s.season < 2 {
		s.rest = s.rest.next(v)
		return s
	}

	s.rest = s.rest.next(s.without(v, s.step))
	if !math.IsNaN(v) {
		slot := s.step * s.slots / s.season
		s.sums, s.counts = slices.Clone(s.sums), slices.Clone(s.counts)
		s.sums[slot] += v
		s.counts[slot]++
	}
	s.step++
	if s.step < s.season {
		return s
	}
	return s.turned()
}

// without and with remove the season from a value, and add it.
func (s seasonal) without(v float64, step int) float64 {
	switch p := s.usual(step); {
	case s.pattern == nil:
		return v
	case s.multiplicative:
		return v / max(p, leastFactor)
	default:
		return v - p
	}
}

func (s seasonal) with(v float64, step int) float64 {
	switch p := s.usual(step); {
	case s.pattern == nil:
		return v
	case s.multiplicative:
		return v * max(p, leastFactor)
	default:
		return v + p
	}
}

// usual returns the pattern at a step, linear between the middles of slots.
func (s seasonal) usual(step int) float64 {
	if s.pattern == nil {
		return 0
	}
	place := (float64(step%s.season)+0.5)*float64(s.slots)/float64(s.season) - 0.5
	before := math.Floor(place)
	share := place - before
	i := (int(before) + s.slots) % s.slots
	return s.pattern[i]*(1-share) + s.pattern[(i+1)%s.slots]*share
}

// turned learns from the season that is over, and begins the next one.
func (s seasonal) turned() seasonal {
	total, n := 0.0, 0.0
	for i := range s.sums {
		total += s.sums[i]
		n += float64(s.counts[i])
	}
	mean := total / max(n, 1)

	last := s.step - 1
	level := s.with(s.rest.level, last)
	s.pattern = s.learned(mean, n)
	s.rest.level = s.without(level, last)
	s.step = 0
	s.sums, s.counts = make([]float64, s.slots), make([]uint32, s.slots)
	return s
}

// learned returns the pattern with the season's means. A season without traffic, or with values in less than half of it, teaches
// nothing.
func (s seasonal) learned(mean, n float64) []float64 {
	if n < float64(s.season)/2 || mean <= 0 {
		return s.pattern
	}
	neutral, weight := 0.0, seasonWeight
	if s.multiplicative {
		neutral = 1
	}
	if s.pattern == nil {
		weight = 1
	}

	out := make([]float64, s.slots)
	for i := range out {
		old := neutral
		if s.pattern != nil {
			old = s.pattern[i]
		}
		newest := old
		switch {
		case s.counts[i] == 0:
		case s.multiplicative:
			newest = s.sums[i] / float64(s.counts[i]) / mean
		default:
			newest = s.sums[i]/float64(s.counts[i]) - mean
		}
		out[i] = old + weight*(newest-old)
	}
	return out
}

func (s seasonal) at(steps int) Estimate {
	e := s.rest.at(steps)
	if s.pattern == nil {
		return e
	}
	e.Mean = s.with(e.Mean, (s.step+steps-1)%s.season)
	if s.multiplicative {
		e.Deviation *= max(s.usual(s.step+steps-1), leastFactor)
	}
	return e
}
