package prefill

import (
	"bytes"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestWait: the wait for a prompt follows how long prompts have taken, at once when they take longer.
func TestWait(t *testing.T) {
	s := newStandings(slog.New(slog.DiscardHandler))
	if w := s.wait("m", 1000); w < 10*time.Second || w > 20*time.Second {
		t.Errorf("a pool of which nothing is known: %s", w)
	}
	for range 200 {
		s.served("p", "m", 1000, 100*time.Millisecond)
	}
	if w := s.wait("m", 1000); w < waitFloor+400*time.Millisecond || w > waitFloor+450*time.Millisecond {
		t.Errorf("prompts took 100 ms: %s", w)
	}
	s.served("p", "m", 1000, time.Second)
	if w := s.wait("m", 1000); w != waitFloor+4*time.Second {
		t.Errorf("a prompt took 1 s: %s", w)
	}
	if other := s.wait("another", 1000); other < 10*time.Second {
		t.Errorf("another pool: %s", other)
	}
}

// TestPauses: a worker whose answer is late gets no request for a while, then one, and others when it has computed a prompt.
func TestPauses(t *testing.T) {
	s := newStandings(slog.New(slog.DiscardHandler))
	now := time.Unix(1e9, 0)
	for _, pause := range []time.Duration{5, 10, 20, 40, 60, 60} {
		pause *= time.Second
		s.failed("p", TimedOut, nil, now)
		if !slices.Equal(s.paused(now.Add(pause-1)), []string{"p"}) || s.paused(now.Add(pause)) != nil {
			t.Errorf("after %s: %v, %v", pause, s.paused(now.Add(pause-1)), s.paused(now.Add(pause)))
		}
		now = now.Add(pause)
		s.sent("p", 3*time.Second, now)
		if !slices.Equal(s.paused(now.Add(time.Second)), []string{"p"}) {
			t.Error("two requests try the worker at a time")
		}
	}
	s.served("p", "m", 100, time.Second)
	s.failed("q", Unreachable, nil, now)
	s.sent("q", time.Second, now)
	if paused := s.paused(now); paused != nil {
		t.Errorf("%v pause", paused)
	}
}

// TestFailuresAreLoggedOnce: the failures of a worker in a row are one line, and so is their end.
func TestFailuresAreLoggedOnce(t *testing.T) {
	var log bytes.Buffer
	s := newStandings(slog.New(slog.NewTextHandler(&log, nil)))
	for range 100 {
		s.failed("p", Unreachable, errors.New("connection refused"), time.Now())
	}
	s.served("p", "m", 100, time.Second)
	s.served("p", "m", 100, time.Second)
	s.failed("p", Failed, nil, time.Now())
	lines := strings.Split(strings.TrimSpace(log.String()), "\n")
	if len(lines) != 3 || !strings.Contains(lines[0], "connection refused") || !strings.Contains(lines[1], "failures=100") {
		t.Errorf("%q", lines)
	}
}
