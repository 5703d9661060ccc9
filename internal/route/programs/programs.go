package programs

import (
	"container/heap"
	"sync"
	"time"
)

const (
	// maxIdle is the longest time after its last answer at which a program has left. It is pauses times the mean pause, from minIdle on,
	// and maxIdle until pauses are known. Few tools of coding agents take longer.
	minIdle, maxIdle = 2 * time.Second, time.Minute
	pauses           = 4
	// pauseKeep is the number of pauses in the mean.
	pauseKeep = 64
	// running is the time after which a request of a program counts as ended although that was not reported.
	running = 10 * time.Minute
	// share is the sum of contexts that are admitted, as a share of the caches. It is more than 1, because contexts have common beginnings,
	// and because a cache that is a little too small costs less than engines that have nothing to do.
	share = 1.2
	// maxPrograms bounds a table. Programs beyond it are not held back.
	maxPrograms = 1 << 16
)

// Table has the admitted programs of a pool. The zero value is empty.
type Table struct {
	mu        sync.Mutex
	bySession map[uint64]*program // guarded by mu
	byUntil   programHeap         // guarded by mu
	tokens    int                 // of all contexts; guarded by mu
	pause     time.Duration       // the mean; guarded by mu
	paused    int                 // pauses in the mean; guarded by mu
}

// program is an admitted program.
type program struct {
	session uint64
	tokens  int       // of its largest context
	ended   time.Time // its last answer; zero while it has none
	until   time.Time // when it leaves
	place   int       // in the heap
}

// Admits reports whether a request of a session, with so many tokens of prompt, may go: its program is there, or its context has room in a
// capacity of all caches, in tokens. An empty table admits any program. A request without a session, and every request if the capacity is
// not known, may go.
func (t *Table) Admits(session uint64, tokens, capacity int, now time.Time) bool {
	if session == 0 || capacity <= 0 {
		return true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expire(now)
	_, known := t.bySession[session]
	return known || len(t.bySession) == 0 || len(t.bySession) >= maxPrograms || float64(t.tokens+tokens) <= share*float64(capacity)
}

// Began records that a request of a session went to a worker.
func (t *Table) Began(session uint64, tokens int, now time.Time) {
	if session == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.bySession[session]
	if p == nil {
		if len(t.bySession) >= maxPrograms {
			return
		}
		if t.bySession == nil {
			t.bySession = map[uint64]*program{}
		}
		p = &program{session: session}
		t.bySession[session] = p
		heap.Push(&t.byUntil, p)
	}

	// A context that was compacted is forgotten after a few steps, and those of sub-agents do not replace the largest one.
	largest := max(tokens, p.tokens-p.tokens/10)
	t.tokens += largest - p.tokens
	p.tokens = largest
	if !p.ended.IsZero() {
		t.paused = min(t.paused+1, pauseKeep)
		t.pause += (now.Sub(p.ended) - t.pause) / time.Duration(t.paused)
		p.ended = time.Time{}
	}
	t.keep(p, now.Add(running))
}

// Ended records that the answer to a request of a session has ended.
func (t *Table) Ended(session uint64, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p := t.bySession[session]; p != nil {
		p.ended = now
		t.keep(p, now.Add(t.idle()))
	}
}

// idle returns the time after its last answer at which a program has left. mu is held.
func (t *Table) idle() time.Duration {
	if t.paused < pauseKeep/2 {
		return maxIdle
	}
	return min(max(minIdle, pauses*t.pause), maxIdle)
}

// keep sets when a program leaves. mu is held.
func (t *Table) keep(p *program, until time.Time) {
	p.until = until
	heap.Fix(&t.byUntil, p.place)
}

// expire removes the programs that have left. mu is held.
func (t *Table) expire(now time.Time) {
	for len(t.byUntil) > 0 && t.byUntil[0].until.Before(now) {
		p := heap.Pop(&t.byUntil).(*program)
		delete(t.bySession, p.session)
		t.tokens -= p.tokens
	}
}

// programHeap has the program that leaves first at its top.
type programHeap []*program

func (h programHeap) Len() int           { return len(h) }
func (h programHeap) Less(i, j int) bool { return h[i].until.Before(h[j].until) }
func (h programHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i, j
}

// Push appends.
func (h *programHeap) Push(x any) {
	p := x.(*program)
	p.place = len(*h)
	*h = append(*h, p)
}

// Pop removes the last one.
func (h *programHeap) Pop() any {
	last := len(*h) - 1
	p := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return p
}
