package trace

import (
	"container/heap"
	"math/rand/v2"
	"time"
)

// Jitter delays each arrival of a source by a random time from 0 to span. It is for traces whose times
// were rounded, where many requests seem to arrive at the same moment. It holds the arrivals of one span
// in memory.
func Jitter(span time.Duration, seed uint64, next Source) Source {
	j := &jitter{span: span, rng: rand.New(rand.NewPCG(seed, seedJitter)), next: next}
	return j.nextArrival
}

type jitter struct {
	span time.Duration
	rng  *rand.Rand
	next Source

	delayed arrivalHeap   // read and delayed, and not returned yet
	last    time.Duration // undelayed time of the last arrival that was read
	ended   bool          // next has no more arrivals
	err     error         // of next, returned after the delayed arrivals
}

// nextArrival returns the earliest delayed arrival. It first reads on until no later arrival of the source can
// come before it: delays are not negative, so that holds once the source is past its time.
func (j *jitter) nextArrival() (Arrival, bool, error) {
	for !j.ended && (len(j.delayed) == 0 || j.delayed[0].At > j.last) {
		a, ok, err := j.next()
		if err != nil || !ok {
			j.ended = true
			j.err = err
			break
		}
		j.last = a.At
		a.At += time.Duration(j.rng.Float64() * float64(j.span))
		heap.Push(&j.delayed, a)
	}

	if len(j.delayed) == 0 {
		return Arrival{}, false, j.err
	}
	return heap.Pop(&j.delayed).(Arrival), true, nil
}

// arrivalHeap has the earliest arrival first.
type arrivalHeap []Arrival

func (h *arrivalHeap) Len() int           { return len(*h) }
func (h *arrivalHeap) Less(i, k int) bool { return (*h)[i].At < (*h)[k].At }
func (h *arrivalHeap) Swap(i, k int)      { (*h)[i], (*h)[k] = (*h)[k], (*h)[i] }

// Push appends an arrival for package heap.
func (h *arrivalHeap) Push(x any) { *h = append(*h, x.(Arrival)) }

// Pop removes the last arrival for package heap.
func (h *arrivalHeap) Pop() any {
	last := len(*h) - 1
	a := (*h)[last]
	(*h)[last] = Arrival{}
	*h = (*h)[:last]
	return a
}
