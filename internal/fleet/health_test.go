package fleet

import (
	"testing"
	"time"
)

// TestHeldBack walks a rank through the table of its health.
func TestHeldBack(t *testing.T) {
	l, now := &Load{}, time.Unix(1000, 0)
	fail := func() { l.ObserveUnserved(now) }
	for i, step := range []struct {
		what string
		do   func()
		held bool
	}{
		{"new", func() {}, false},
		{"a probe of a healthy rank", func() { l.Probe(now) }, false},
		{"one failure", fail, false},
		{"two", fail, false},
		{"served between failures", l.ObserveServed, false},
		{"one again", fail, false},
		{"two again", fail, false},
		{"three in a row", fail, true},
		{"just before the end", func() { now = now.Add(HoldTime - 1) }, true},
		{"the end", func() { now = now.Add(1) }, false},
		{"a probe keeps others away", func() { l.Probe(now) }, true},
		{"until the next", func() { now = now.Add(HoldTime) }, false},
		{"a failed probe", fail, true},
		{"served", l.ObserveServed, false},
		{"one failure after that", fail, false},
	} {
		step.do()
		if got := l.IsHeldBack(now); got != step.held {
			t.Errorf("step %d, %s: held back: %v", i, step.what, got)
		}
	}
}
