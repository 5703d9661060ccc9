package kvsource_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stator-project/stator/enginesim"
	"github.com/stator-project/stator/internal/kvsource"
	"github.com/stator-project/stator/test/testkit"
)

// TestSourceBeginsAfterAMessage: a source replays what follows the last message of an earlier source. A message that the engine no longer
// has, or that another process has sent, means a new process: then everything is replayed that the engine has.
func TestSourceBeginsAfterAMessage(t *testing.T) {
	const messages, replayable = 40, 10
	sim, _ := startSim(t, anyPort, anyPort, func(c *enginesim.Config) { c.ReplayBuffer = replayable })
	first := listen(t, sim.EventsEndpoint(), sim.ReplayEndpoint(), nil)
	for i := range messages {
		ask(t, sim, fmt.Sprintf("%d is a prompt", i))
		testkit.Eventually(t, "the message is here", first.reached(uint64(i+1)))
	}

	for _, c := range []struct {
		name     string
		seq      uint64
		later    float64 // than the message
		restarts int
		begins   uint64 // the first number that is delivered
	}{
		{"the engine has it", messages - 5, 0, 0, messages - 4},
		{"it is the last", messages - 1, 0, 0, messages},
		{"the engine no longer has it", messages - replayable - 1, 0, 1, messages - replayable},
		{"another process has sent it", messages - 5, 1, 1, messages - replayable},
		{"the engine has not counted so far", messages + 1, 0, 1, messages - replayable},
	} {
		t.Run(c.name, func(t *testing.T) {
			at := kvsource.Position{Seq: c.seq, Seconds: 1 + c.later}
			if c.seq < messages {
				at.Seconds = first.seconds[c.seq] + c.later
			}
			l := listen(t, sim.EventsEndpoint(), sim.ReplayEndpoint(), func(k *kvsource.Config, l *consumer) {
				k.After = &at
				l.next, l.giveUp = c.seq+1, time.Now()
			})
			testkit.Eventually(t, "it has caught up", func() (ok bool) {
				l.read(func() { ok = slices.Contains(l.caughtUp, messages) })
				return ok
			})
			l.read(func() {
				if l.reported != c.restarts {
					t.Errorf("%d restarts are reported, want %d", l.reported, c.restarts)
				}
				if begins := append(slices.Clone(l.accepted), messages)[0]; begins != c.begins {
					t.Errorf("it begins at number %d, want %d", begins, c.begins)
				}
			})
		})
	}

	if _, err := kvsource.New(kvsource.Config{Endpoint: anyPort, After: &kvsource.Position{Seq: 1, Seconds: 1}}); err == nil {
		t.Error("a source without a replay socket begins after a message")
	}
}
