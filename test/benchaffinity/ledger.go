package main

import (
	"fmt"
	"io"
	"sync"
)

// ledger counts requests by the phase in which they began. Its methods are safe for concurrent use.
type ledger struct {
	mu    sync.Mutex
	phase int     // guarded by mu
	rows  []tally // guarded by mu; by phase
}

// tally counts requests and tokens of a phase.
type tally struct {
	requests, failed, prompt, cached int
}

// share returns the part of the prompt tokens that engines had cached.
func (t tally) share() float64 { return float64(t.cached) / float64(max(1, t.prompt)) }

func newLedger() *ledger { return &ledger{rows: make([]tally, len(phases))} }

// enter begins a phase.
func (l *ledger) enter(phase int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.phase = phase
}

// now returns the phase.
func (l *ledger) now() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.phase
}

// count adds a request that began in that phase.
func (l *ledger) count(phase int, t tally) {
	l.mu.Lock()
	defer l.mu.Unlock()
	row := &l.rows[phase]
	row.requests += t.requests
	row.failed += t.failed
	row.prompt += t.prompt
	row.cached += t.cached
}

// add adds the requests of another ledger, which is complete.
func (l *ledger) add(other *ledger) {
	for phase, t := range other.rows {
		l.count(phase, t)
	}
}

// writeTo writes a line for each phase. The last column is the share divided by the first phase's share.
func (l *ledger) writeTo(out io.Writer, round, arm string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for phase, t := range l.rows {
		of := 0.0
		if kv := l.rows[0].share(); kv > 0 {
			of = t.share() / kv
		}
		fmt.Fprintf(out, "%5s  %-6s  %-15s %9d %7d %8.3f %8.0f%%\n", round, arm, phases[phase], t.requests, t.failed, t.share(), 100*of)
	}
}
