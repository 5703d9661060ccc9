package sim

import (
	"time"

	"github.com/stator-project/stator/internal/route/peers"
)

// kind says what happens.
type kind uint8

const (
	arrival      kind = iota
	passBegins        // worker's, if it is idle, once all else of this moment has happened
	passEnds          // worker's, of the process life
	eventsCome        // message, to its replica
	firstToken        // the router hears of job's
	lastToken         // the same
	transferred       // job's prompt has come to the workers that decode
	reports           // of all engines
	wakes             // a wait in job's router's queue has ended
	settles           // all routers look which prompts are computed
	workerDies        // worker, for span
	workerStarts      // worker
	bookingsCome      // bookings, to all replicas but the one that made them
)

// event is one thing that will happen.
type event struct {
	at      time.Duration
	order   uint64 // of making: it breaks ties, so that runs repeat themselves
	kind    kind
	worker  int
	life    uint64
	span    time.Duration
	job     *job
	id      string // of job's decision
	message *message
	booked  *peers.Update
}

// agenda is what will happen, the next first: a binary heap.
type agenda struct {
	heap []event
	made uint64
}

func (a *agenda) add(e event) {
	a.made++
	e.order = a.made
	if e.kind == passBegins {
		e.order |= 1 << 63
	}
	a.heap = append(a.heap, e)
	i := len(a.heap) - 1
	for i > 0 && a.before(i, (i-1)/2) {
		a.heap[i], a.heap[(i-1)/2] = a.heap[(i-1)/2], a.heap[i]
		i = (i - 1) / 2
	}
}

// take takes the next event; false where there is none.
func (a *agenda) take() (e event, ok bool) {
	if len(a.heap) == 0 {
		return e, false
	}
	e = a.heap[0]
	last := len(a.heap) - 1
	a.heap[0] = a.heap[last]
	a.heap[last] = event{}
	a.heap = a.heap[:last]
	for i := 0; ; {
		child := 2*i + 1
		if child >= last {
			return e, true
		}
		if child+1 < last && a.before(child+1, child) {
			child++
		}
		if !a.before(child, i) {
			return e, true
		}
		a.heap[i], a.heap[child] = a.heap[child], a.heap[i]
		i = child
	}
}

func (a *agenda) before(i, j int) bool {
	x, y := &a.heap[i], &a.heap[j]
	return x.at < y.at || x.at == y.at && x.order < y.order
}
