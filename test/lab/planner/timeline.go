package planner

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/stator-project/stator/internal/plan"
	"github.com/stator-project/stator/internal/sim"
)

// minute counts the events in a minute of a run.
type minute struct {
	requests, misses int
	late             int       // misses of the time to first token
	last             plan.Plan // the last one
	waiting          int       // requests in engines' queues at the time of that plan
}

// timeline is the minutes of a run.
type timeline struct {
	sla     sim.SLA
	begin   time.Time
	minutes []minute
}

// printTimeline plays the first candidate whose label contains a text, and prints its minutes.
func (b *bench) printTimeline(w io.Writer, x *workload, startUp time.Duration, text string) error {
	for _, c := range contenders {
		for _, candidate := range c.grid(x, startUp) {
			if candidate.settings == nil || !strings.Contains(candidate.label, text) {
				continue
			}
			fmt.Fprintf(w, "\n%s, start-up %v, %s, %s:\n", x.name, startUp, c.name, candidate.label)
			next, err := x.source(b)
			if err != nil {
				return err
			}
			t := &timeline{sla: x.sla}
			_, err = b.play(x, next, &candidate, startUp, t)
			t.print(w)
			return err
		}
	}
	return nil
}

// at returns the minute of a time since the first arrival.
func (t *timeline) at(d time.Duration) *minute {
	for int(d/time.Minute) >= len(t.minutes) {
		t.minutes = append(t.minutes, minute{})
	}
	return &t.minutes[d/time.Minute]
}

// planned takes an observation and its plan.
func (t *timeline) planned(o *plan.Observation, p plan.Plan) {
	if t.begin.IsZero() {
		t.begin = o.At
	}
	m := t.at(o.At.Sub(t.begin))
	m.last = p
	m.waiting = 0
	for i := range o.Workers {
		if o.Workers[i].Load != nil {
			m.waiting += o.Workers[i].Load.Waiting
		}
	}
}

// ended takes the outcome of a request.
func (t *timeline) ended(o sim.Outcome) {
	m := t.at(o.At)
	m.requests++
	if o.Failed || o.First-o.At > t.sla.TTFT {
		m.late++
	}
	if o.Failed || t.sla.Misses(o.At, o.First, o.End, o.Output) {
		m.misses++
	}
}

// print prints all minutes.
func (t *timeline) print(w io.Writer) {
	for i, m := range t.minutes {
		fmt.Fprintf(w, "%3d min: %.1f requests/s, %d misses (%d of the TTFT), %d wait\n", i, float64(m.requests)/60, m.misses, m.late,
			m.waiting)
		for _, p := range m.last.Pools {
			fmt.Fprintf(w, "         %v %d (%d ready): %s\n", p.Role, p.Replicas, p.Ready, p.Reason)
		}
	}
}
