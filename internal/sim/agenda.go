package sim

import (
	"time"

	"github.com/stator-project/stator/internal/route/peers"
)

// kind is a kind of event. The comment of each kind names the fields of event that it uses.
type kind uint8

const (
	arrival        kind = iota // a request arrives
	passBegins                 // worker begins a pass if it is idle; after all other events of its time
	passEnds                   // worker ends the pass that it began in its life
	eventsCome                 // message reaches all replicas
	firstToken                 // job's replica sees its first token
	lastToken                  // job's replica sees its last token
	transferBegins             // data of job begin to flow between its workers
	transferEnds               // some transfers end, if none began or ended since the one with the number life
	reports                    // all engines report their load
	wakes                      // the wait of job in its replica's queue is over
	settles                    // all replicas check which prompts are computed
	workerDies                 // worker dies, for span
	workerStarts               // worker starts again
	workerReady                // worker, which was started during the run, is ready
	plans                      // the number of engines is planned
	bookingsCome               // booked reaches all replicas but the one that published it
)

// event is one thing that happens at a time.
type event struct {
	at time.Duration
	// order is the number of the event in order of creation. It breaks ties of time, so that the same
	// configuration gives the same run.
	order   uint64
	kind    kind
	worker  int
	life    uint64 // epoch of the worker when a pass began, or of the links; an old one has no effect
	span    time.Duration
	job     *job
	id      string // of the job's decision
	message *message
	booked  *peers.Update
}

// afterOthers is set in the order of events that happen after all others of their time.
const afterOthers = 1 << 63

// agenda has all future events, as a binary heap with the next one first.
//
// Invariant: no event is before its parent, which is at half its index. container/heap is not used,
// because its interface would allocate for every event.
type agenda struct {
	heap []event
	made uint64 // events so far
}

// add adds an event.
func (a *agenda) add(e event) {
	a.made++
	e.order = a.made
	if e.kind == passBegins {
		e.order |= afterOthers
	}

	a.heap = append(a.heap, e)
	i := len(a.heap) - 1
	for i > 0 && a.before(i, (i-1)/2) {
		parent := (i - 1) / 2
		a.swap(i, parent)
		i = parent
	}
}

// next removes and returns the next event. ok is false when there is none.
func (a *agenda) next() (e event, ok bool) {
	if len(a.heap) == 0 {
		return e, false
	}

	e = a.heap[0]
	last := len(a.heap) - 1
	a.heap[0] = a.heap[last]
	a.heap[last] = event{} // drops the pointers
	a.heap = a.heap[:last]
	a.sink(0)
	return e, true
}

// sink moves an event down until no child is before it.
func (a *agenda) sink(i int) {
	for {
		child := 2*i + 1
		if child >= len(a.heap) {
			return
		}
		if child+1 < len(a.heap) && a.before(child+1, child) {
			child++
		}
		if !a.before(child, i) {
			return
		}
		a.swap(i, child)
		i = child
	}
}

func (a *agenda) swap(i, j int) { a.heap[i], a.heap[j] = a.heap[j], a.heap[i] }

func (a *agenda) before(i, j int) bool {
	x, y := &a.heap[i], &a.heap[j]
	return x.at < y.at || x.at == y.at && x.order < y.order
}
