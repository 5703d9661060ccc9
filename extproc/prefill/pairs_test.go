package prefill

import (
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// TestPairs: a pair pauses longer with each empty answer, one request tries it after a pause, and an answer with tokens ends that.
func TestPairs(t *testing.T) {
	s := newPairs(slog.New(slog.DiscardHandler), prometheus.NewCounter(prometheus.CounterOpts{}))
	now, p := time.Unix(1e9, 0), pair{"p", "d"}
	turn := func(isEmpty bool) {
		s.chosen(p, now)
		s.transferred("x", p)
		s.answered("x", isEmpty, now)
	}
	for _, pause := range []time.Duration{1, 2, 4, 8, 16, 16} {
		pause *= time.Minute
		turn(true)
		if !slices.Equal(s.paused("d", now.Add(pause-1)), []string{"p"}) || s.paused("d", now.Add(pause)) != nil {
			t.Errorf("after %s: %v, %v", pause, s.paused("d", now.Add(pause-1)), s.paused("d", now.Add(pause)))
		}
		if others := s.paused("e", now); others != nil {
			t.Errorf("another decode worker: %v", others)
		}
		now = now.Add(pause)
		s.chosen(p, now)
		if s.paused("d", now.Add(time.Second)) == nil {
			t.Error("two requests try the pair at a time")
		}
	}
	turn(false)
	if s.paused("d", now) != nil || len(s.failing) != 0 {
		t.Error("a pair that works pauses")
	}
	s.answered("unknown", true, now)
	if len(s.failing) != 0 {
		t.Error("an answer without a transfer counts")
	}
}

// TestPairsAreBounded has more requests whose ends never come, and more failing pairs, than are kept.
func TestPairsAreBounded(t *testing.T) {
	s := newPairs(slog.New(slog.DiscardHandler), prometheus.NewCounter(prometheus.CounterOpts{}))
	now := time.Unix(1e9, 0)
	for i := range 3 * maxUnanswered {
		s.transferred(fmt.Sprint(i), pair{fmt.Sprint(i), "d"})
	}
	if n := len(s.fresh) + len(s.old); n > 2*maxUnanswered {
		t.Errorf("%d requests", n)
	}
	for i := maxUnanswered; i < 3*maxUnanswered; i++ {
		s.answered(fmt.Sprint(i), true, now)
	}
	if len(s.failing) != maxFailing {
		t.Errorf("%d pairs", len(s.failing))
	}
	s.transferred("x", pair{"x", "d"})
	s.answered("x", true, now.Add(firstPairPause+1))
	if len(s.failing) != 1 {
		t.Errorf("%d pairs after their pauses", len(s.failing))
	}
}
