package sim

import (
	"container/heap"
	"math/rand/v2"
	"time"
)

// Jitter lets each arrival of a source come later, by a time drawn between 0 and span: for traces whose
// times were rounded, so that many requests came in one moment that did not. It keeps the
// arrivals of one span in memory.
func Jitter(span time.Duration, seed uint64, next Source) Source {
	j := &jitter{span: span, rng: rand.New(rand.NewPCG(seed, 0x717)), next: next}
	return j.take
}

type jitter struct {
	span time.Duration
	rng  *rand.Rand
	next Source
	soon drawn // and not yet given out
	last time.Duration
	dry  bool
	err  error
}

// take gives out the first of those drawn, once none that is not drawn yet can come before it.
func (j *jitter) take() (Arrival, bool, error) {
	for !j.dry && (len(j.soon) == 0 || j.soon[0].At > j.last) {
		a, ok, err := j.next()
		if err != nil || !ok {
			j.dry, j.err = true, err
			break
		}
		j.last = a.At
		a.At += time.Duration(j.rng.Float64() * float64(j.span))
		heap.Push(&j.soon, a)
	}
	if len(j.soon) == 0 {
		return Arrival{}, false, j.err
	}
	return heap.Pop(&j.soon).(Arrival), true, nil
}

// drawn has the next arrival in front.
type drawn []Arrival

func (s *drawn) Len() int           { return len(*s) }
func (s *drawn) Less(i, k int) bool { return (*s)[i].At < (*s)[k].At }
func (s *drawn) Swap(i, k int)      { (*s)[i], (*s)[k] = (*s)[k], (*s)[i] }

// Push is for package heap.
func (s *drawn) Push(x any) { *s = append(*s, x.(Arrival)) }

// Pop is for package heap.
func (s *drawn) Pop() any {
	last := len(*s) - 1
	a := (*s)[last]
	(*s)[last] = Arrival{}
	*s = (*s)[:last]
	return a
}
