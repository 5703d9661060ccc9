package pick

import "sync"

// weight returns the share of a candidate among the candidates that a policy draws, or takes in turn. It is its worker's share, of
// which each rank has the whole.
func weight(c *Candidate) int64 {
	if w := c.Rank.Worker; w != nil && w.Weight > 0 {
		return int64(w.Weight)
	}
	return 1
}

// sumOfWeights returns the sum of the candidates' weights, and whether all of them are equal.
func sumOfWeights(cs []Candidate) (sum int64, isEven bool) {
	first := weight(&cs[0])
	isEven = true
	for i := range cs {
		w := weight(&cs[i])
		sum += w
		isEven = isEven && w == first
	}
	return sum, isEven
}

// drawn returns the candidate at a point between 0 and the sum of the weights, which is not part of the range. It leaves out the
// candidate without, whose weight is not in the sum then; -1 leaves out none.
func drawn(cs []Candidate, point int64, without int) int {
	last := 0
	for i := range cs {
		if i == without {
			continue
		}
		last = i
		point -= weight(&cs[i])
		if point < 0 {
			break
		}
	}
	return last
}

// byWeightedLoad compares the loads of candidates, each divided by its weight. A load has the new request, so that the candidate
// with more weight is taken where both are idle. The fractions are compared by their cross products, which are exact.
func byWeightedLoad(a, b *Candidate) float64 {
	wa, wb := weight(a), weight(b)
	if d := (requests(a)+1)*wb - (requests(b)+1)*wa; d != 0 {
		return float64(d)
	}
	if d := a.Facts.Booked.PrefillTokens*wb - b.Facts.Booked.PrefillTokens*wa; d != 0 {
		return float64(d)
	}
	return float64(a.Facts.Booked.DecodeBlocks*wb - b.Facts.Booked.DecodeBlocks*wa)
}

// smooth takes candidates in turn, in proportion to their weights, and spreads the turns of each evenly. It is the smooth weighted
// round robin of nginx: in each turn every candidate gains its weight, and the one that has most then pays the sum.
type smooth struct {
	mu sync.Mutex
	// gained is by RankID. An id that is used again inherits a few turns at most. Guarded by mu.
	gained []int64
}

func (s *smooth) choose(cs []Candidate) int {
	s.mu.Lock()
	defer s.mu.Unlock()

	best, sum := 0, int64(0)
	for i := range cs {
		id := int(cs[i].Rank.ID)
		if id >= len(s.gained) {
			s.gained = append(s.gained, make([]int64, id+1-len(s.gained))...)
		}
		w := weight(&cs[i])
		sum += w
		s.gained[id] += w
		if s.gained[id] > s.gained[cs[best].Rank.ID] {
			best = i
		}
	}
	s.gained[cs[best].Rank.ID] -= sum
	return best
}
