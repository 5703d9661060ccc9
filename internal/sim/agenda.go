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
	stepArrives                // step arrives

	kinds        // how many there are
	bookingsCome // booked reaches all replicas but the one that published it
)

// event is one thing that happens at a time.
type event struct {
	at      time.Duration
	kind    kind
	worker  int
	life    uint64 // of the pass, or of the links; an old one has no effect
	span    time.Duration
	job     *job
	step    *step
	id      string // of the job's decision
	message *message
	booked  *peers.Update
}

// agenda has all future events, as a binary heap of their times with the next one first. The events themselves are not moved,
// because a run has hundreds of millions of them, and moving them would be a large part of its time. Most are ends of passes,
// which have an entry alone.
//
// Invariants: no entry of heap is before its parent, which is at half its index. Each entry without passEnd names another place of
// events, and all other places are in free. begins are the numbers of workers whose passBegins comes after all other events of the
// time beginsAt. container/heap is not used, because its interface would allocate for every event.
type agenda struct {
	heap     []entry
	events   []event
	free     []uint32
	made     uint64 // entries so far
	begins   []int
	beginsAt time.Duration
	current  event // the last one that next returned; of a pass, with only the fields of its kind
}

// entry is the time of an event. order is the number of the entry in order of creation. It breaks ties of time, so that the same
// configuration gives the same run.
type entry struct {
	at    time.Duration
	order uint64
	place uint32 // in events, or passEnd and the number of a worker
}

// passEnd is set in the place of an entry that is the end of a worker's pass.
const passEnd = 1 << 31

// begin adds an event passBegins at the present time.
func (a *agenda) begin(worker int, now time.Duration) {
	a.begins = append(a.begins, worker)
	a.beginsAt = now
}

// endPass adds an event passEnds, and returns its life: a number that no other event passEnds has.
func (a *agenda) endPass(worker int, at time.Duration) (life uint64) {
	a.made++
	a.rise(entry{at, a.made, passEnd | uint32(worker)})
	return a.made
}

// add adds an event of another kind.
func (a *agenda) add(e event) {
	a.made++
	next := entry{at: e.at, order: a.made}
	if n := len(a.free); n > 0 {
		next.place = a.free[n-1]
		a.free = a.free[:n-1]
		a.events[next.place] = e
	} else {
		next.place = uint32(len(a.events))
		a.events = append(a.events, e)
	}
	a.rise(next)
}

// next removes and returns the next event; nil when there is none. It is valid until the next call.
func (a *agenda) next() *event {
	if len(a.begins) > 0 && (len(a.heap) == 0 || a.heap[0].at > a.beginsAt) {
		a.setPass(passBegins, a.beginsAt, a.begins[0])
		a.begins = a.begins[:copy(a.begins, a.begins[1:])]
		return &a.current
	}
	if len(a.heap) == 0 {
		return nil
	}

	first := a.heap[0]
	last := len(a.heap) - 1
	moved := a.heap[last]
	a.heap = a.heap[:last]
	if last > 0 {
		a.sink(moved)
	}

	if first.place&passEnd != 0 {
		a.setPass(passEnds, first.at, int(first.place&^passEnd))
		a.current.life = first.order
		return &a.current
	}
	a.current = a.events[first.place]
	a.events[first.place] = event{} // drops the pointers
	a.free = append(a.free, first.place)
	return &a.current
}

// setPass makes the current event one of a pass.
func (a *agenda) setPass(k kind, at time.Duration, worker int) {
	a.current.kind = k
	a.current.at = at
	a.current.worker = worker
}

// rise adds an entry at the end of the heap, and moves it up until its parent is before it.
func (a *agenda) rise(e entry) {
	a.heap = append(a.heap, e)
	i := len(a.heap) - 1
	for i > 0 {
		parent := (i - 1) / 2
		if !e.before(&a.heap[parent]) {
			break
		}
		a.heap[i] = a.heap[parent]
		i = parent
	}
	a.heap[i] = e
}

// sink puts an entry in the place of the first one, and moves it down until no child is before it.
func (a *agenda) sink(e entry) {
	i := 0
	for {
		child := 2*i + 1
		if child >= len(a.heap) {
			break
		}
		if child+1 < len(a.heap) && a.heap[child+1].before(&a.heap[child]) {
			child++
		}
		if !a.heap[child].before(&e) {
			break
		}
		a.heap[i] = a.heap[child]
		i = child
	}
	a.heap[i] = e
}

func (e *entry) before(other *entry) bool {
	return e.at < other.at || e.at == other.at && e.order < other.order
}
