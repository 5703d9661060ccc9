package programs

import (
	"container/heap"
	"sync"
	"time"
)

const (
	// maxIdle and minIdle bound the mean pause as the table uses it. The mean is maxIdle until pauses are known. Few tools of coding agents
	// take longer.
	minIdle, maxIdle = 2 * time.Second, time.Minute
	// silent is the number of mean pauses without a request after which a program has ended.
	silent = 4
	// pauseKeep is the number of pauses in the mean.
	pauseKeep = 64
	// running is the time after which a request of a program counts as ended although that was not reported.
	running = 10 * time.Minute
	// kept is the share of a context that must be cached for a step to go at once.
	kept = 0.5
	// lengthKeep is the number of ended programs whose lengths are known, and that are in the mean of their times.
	lengthKeep = 256
	// patience is the longest time for which a program is held back, in times that programs take: longer holds make the longest programs
	// longer by more than they make the others shorter.
	patience = 2
	// maxPrograms bounds a table. Programs beyond it are not held back.
	maxPrograms = 1 << 16
)

// Table has the programs of a pool. The zero value is empty.
type Table struct {
	mu        sync.Mutex
	bySession map[uint64]*program // guarded by mu
	byUntil   programHeap         // guarded by mu
	present   int                 // programs; guarded by mu
	tokens    int                 // of the contexts of programs that are present; guarded by mu
	pause     time.Duration       // the mean; guarded by mu
	paused    int                 // pauses in the mean; guarded by mu
	lengths   []int               // steps of the programs that ended last; guarded by mu
	oldest    int                 // index in lengths; guarded by mu
	took      time.Duration       // the mean time of programs that ended, without holds; guarded by mu
	timed     int                 // programs in took; guarded by mu
}

// program is a program that has sent a request not long ago.
//
//	present    its context counts: it has a request that runs, or its pause is no longer than the mean pause
//	away       its pause is longer, or none of its requests has gone yet
//	forgotten  it is away, none of its requests waits, and it has been silent for some mean pauses
type program struct {
	session uint64
	present bool
	tokens  int           // of its largest context
	steps   int           // requests that have gone
	runs    int           // requests that run
	waits   int           // requests that are held back
	held    time.Duration // the time for which requests were held back
	began   time.Time     // its first request
	ended   time.Time     // its last answer; zero while it has none
	until   time.Time     // when its state may change
	place   int           // in the heap
}

// Step is a request of a program.
type Step struct {
	// Session is the program; 0 means that the request belongs to none.
	Session uint64
	// Tokens is the length of its prompt, and Cached the largest part of it that a worker has.
	Tokens, Cached int
}

// Admits reports whether a request may go, with a capacity of all caches in tokens. A program is held back for at most longest, in all. A
// request without a session, and every request if the capacity is not known, may go.
func (t *Table) Admits(s Step, capacity int, longest time.Duration, now time.Time) bool {
	if s.Session == 0 || capacity <= 0 {
		return true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expire(now)
	others, tokens := t.present, t.tokens
	if p := t.bySession[s.Session]; p != nil {
		if p.runs > 0 || p.held >= t.limit(longest) || p.steps > 0 && float64(s.Cached) >= kept*float64(min(s.Tokens, p.tokens)) {
			return true
		}
		if p.present {
			others--
			tokens -= p.tokens
		}
	}
	return others == 0 || len(t.bySession) >= maxPrograms || tokens+s.Tokens <= capacity
}

// Hold records that a request is held back. It returns for how long it may be, if a program is for at most longest in all, and the work
// that is expected of the program: its context times the steps that programs which came as far had before them.
func (t *Table) Hold(s Step, longest time.Duration, now time.Time) (left time.Duration, work float64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.program(s.Session, now)
	if p == nil {
		return t.limit(longest), float64(s.Tokens)
	}
	p.waits++
	return max(0, t.limit(longest)-p.held), float64(s.Tokens) * t.stepsAfter(p.steps)
}

// limit returns the longest time for which a program is held back: longest, or less if programs take less time. mu is held.
func (t *Table) limit(longest time.Duration) time.Duration {
	if t.timed == 0 {
		return longest
	}
	return min(longest, patience*t.took)
}

// EndHold records that a request is not held back any more, after a time.
func (t *Table) EndHold(session uint64, held time.Duration, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.bySession[session]
	if p == nil {
		return
	}
	p.waits = max(0, p.waits-1)
	p.held += held
	t.schedule(p, now)
}

// Began records that a request went to a worker.
func (t *Table) Began(s Step, now time.Time) {
	if s.Session == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.program(s.Session, now)
	if p == nil {
		return
	}

	// A context that was compacted is forgotten after a few steps, and those of sub-agents do not replace the largest one.
	t.leave(p)
	p.tokens = max(s.Tokens, p.tokens-p.tokens/10)
	p.present = true
	t.present++
	t.tokens += p.tokens
	p.steps++
	p.runs++
	if !p.ended.IsZero() && p.waits == 0 { // else a part of the time since its last answer is a wait
		t.paused = min(t.paused+1, pauseKeep)
		t.pause += (now.Sub(p.ended) - t.pause) / time.Duration(t.paused)
	}
	p.ended = time.Time{}
	t.schedule(p, now)
}

// Ended records that the answer to a request of a session has ended.
func (t *Table) Ended(session uint64, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p := t.bySession[session]; p != nil {
		p.runs = max(0, p.runs-1)
		p.ended = now
		t.schedule(p, now)
	}
}

// program returns the program of a session, which it makes if it is missing; nil if there are too many. mu is held.
func (t *Table) program(session uint64, now time.Time) *program {
	if p := t.bySession[session]; p != nil || len(t.bySession) >= maxPrograms {
		return p
	}
	if t.bySession == nil {
		t.bySession = map[uint64]*program{}
	}
	p := &program{session: session, began: now, until: now.Add(running)}
	t.bySession[session] = p
	heap.Push(&t.byUntil, p)
	return p
}

// stepsAfter returns the mean number of steps that ended programs had after so many. mu is held.
func (t *Table) stepsAfter(steps int) float64 {
	longer, sum := 0, 0
	for _, n := range t.lengths {
		if n > steps {
			longer++
			sum += n - steps
		}
	}
	if longer == 0 {
		return float64(max(1, steps)) // no program has come as far: it is expected to be in its middle
	}
	return float64(sum) / float64(longer)
}

// idle returns the mean pause within its bounds. mu is held.
func (t *Table) idle() time.Duration {
	if t.paused < pauseKeep/2 {
		return maxIdle
	}
	return min(max(minIdle, t.pause), maxIdle)
}

// schedule sets when the state of a program may change next. mu is held.
func (t *Table) schedule(p *program, now time.Time) {
	switch {
	case p.runs > 0 || p.waits > 0 && !p.present:
		p.until = now.Add(running)
	case p.present:
		p.until = now.Add(t.idle())
	default:
		p.until = now.Add(min((silent-1)*t.idle(), maxIdle))
	}
	heap.Fix(&t.byUntil, p.place)
}

// expire changes the states of programs whose time has come. mu is held.
func (t *Table) expire(now time.Time) {
	for len(t.byUntil) > 0 && t.byUntil[0].until.Before(now) {
		p := t.byUntil[0]
		wasPresent := p.present
		p.runs = 0
		t.leave(p)
		if wasPresent || p.waits > 0 {
			t.schedule(p, now)
			continue
		}
		t.forget(p)
	}
}

// leave removes the context of a program from the sum. mu is held.
func (t *Table) leave(p *program) {
	if p.present {
		p.present = false
		t.present--
		t.tokens -= p.tokens
	}
}

// forget removes a program, and learns its length. mu is held.
func (t *Table) forget(p *program) {
	heap.Remove(&t.byUntil, p.place)
	delete(t.bySession, p.session)
	if p.steps > 1 && !p.ended.IsZero() {
		t.timed = min(t.timed+1, lengthKeep)
		t.took += (max(0, p.ended.Sub(p.began)-p.held) - t.took) / time.Duration(t.timed)
	}
	switch {
	case p.steps == 0:
	case len(t.lengths) < lengthKeep:
		t.lengths = append(t.lengths, p.steps)
	default:
		t.lengths[t.oldest] = p.steps
		t.oldest = (t.oldest + 1) % lengthKeep
	}
}

// programHeap has the program whose state may change first at its top.
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
