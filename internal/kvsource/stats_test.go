package kvsource

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stator-project/stator/internal/kv/kvevent"
	"github.com/stator-project/stator/test/testkit"
)

// TestLinesOfASourceAreBounded: an engine that restarts without end causes a few lines a minute for each rank. The
// first line of the next minute has the number of those that were left out.
func TestLinesOfASourceAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log testkit.Log
		s, err := New(Config{Endpoint: "tcp://127.0.0.1:5557", Rank: 3, Logger: log.Logger()})
		if err != nil {
			t.Fatal(err)
		}
		s.consumer = deaf{}

		for range 2768 {
			s.processChanged()
			s.lost(errGapStays, false)
			s.failed("replay", errGapStays, func(*Stats) {})
		}
		for _, line := range []string{"engine restarted", "event connection lost", "event source failed"} {
			if n := log.Count(line); n != linesPerMinute {
				t.Errorf("%d lines with %q", n, line)
			}
		}
		if n := s.Stats().Restarts; n != 2768 {
			t.Errorf("%d restarts are counted", n)
		}

		time.Sleep(time.Minute)
		s.processChanged()
		s.processChanged()
		if n := log.Count("left_out=2764"); n != 1 || log.Count("engine restarted") != linesPerMinute+2 {
			t.Errorf("%d lines have the number of those left out:\n%s", n, &log)
		}
	})
}

// deaf is a consumer that ignores everything.
type deaf struct{}

func (deaf) Restarted()                                  { /* ignored */ }
func (deaf) CaughtUp(uint64) (resume uint64, gap bool)   { return 0, false }
func (deaf) Connected(bool)                              { /* ignored */ }
func (deaf) Batch(uint64, *kvevent.Batch) (uint64, bool) { return 0, false }
