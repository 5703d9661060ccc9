package child_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stator-project/stator/internal/child"
)

var errDied = errors.New("signal: killed")

// lives scripts a supervised process: for each start, how long it loads and is ready.
type lives []struct{ loads, ready time.Duration }

// run lives one life after the other. After the last it ends the supervision.
func (l *lives) run(stop context.CancelFunc) func(context.Context) (time.Duration, error) {
	return func(context.Context) (time.Duration, error) {
		if len(*l) == 0 {
			stop()
			return 0, errDied
		}
		life := (*l)[0]
		*l = (*l)[1:]
		time.Sleep(life.loads + life.ready)
		return life.ready, errDied
	}
}

// supervise returns the pauses before each restart, by a virtual clock.
func supervise(t *testing.T, maxFailures int, l lives) (pauses []time.Duration, err error) {
	t.Helper()

	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		s := child.Supervisor{MaxFailures: maxFailures, Restarting: func(_ error, pause time.Duration) { pauses = append(pauses, pause) }}
		err = s.Run(ctx, l.run(stop))
	})
	return pauses, err
}

// TestRestartPausesDouble: a process that never becomes ready is started less and less often.
func TestRestartPausesDouble(t *testing.T) {
	pauses, err := supervise(t, 0, make(lives, 9))

	const ms = time.Millisecond
	want := []time.Duration{250 * ms, 500 * ms, 1000 * ms, 2000 * ms, 4000 * ms, 8000 * ms, 16000 * ms, 30000 * ms, 30000 * ms}
	if err != nil || !slices.Equal(pauses, want) {
		t.Errorf("pauses %v, %v; want %v", pauses, err, want)
	}
}

// TestLoadingIsNotBeingReady: an engine that loads its model for two minutes and dies at once waits
// longer before each restart. One that served for a minute starts at the first pause again.
func TestLoadingIsNotBeingReady(t *testing.T) {
	pauses, err := supervise(t, 0, lives{
		{loads: 2 * time.Minute}, {loads: 2 * time.Minute, ready: time.Second}, {ready: time.Minute}, {ready: time.Second},
	})

	const ms = time.Millisecond
	if want := []time.Duration{250 * ms, 500 * ms, 250 * ms, 500 * ms}; err != nil || !slices.Equal(pauses, want) {
		t.Errorf("pauses %v, %v; want %v", pauses, err, want)
	}
}

// TestGivesUpAfterFailures: a process that was ready in between starts the count again.
func TestGivesUpAfterFailures(t *testing.T) {
	pauses, err := supervise(t, 3, lives{{}, {}, {ready: time.Second}, {}, {}, {}, {}})

	if len(pauses) != 5 || !errors.Is(err, errDied) {
		t.Errorf("%d restarts, then %v", len(pauses), err)
	}
	if want := "the process ended 3 times in a row before it was ready: signal: killed"; err == nil || err.Error() != want {
		t.Errorf("error %q, want %q", err, want)
	}
}

// TestStopsDuringAPause: the end of the context is not held up by a long pause.
func TestStopsDuringAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer stop()

		began := time.Now()
		err := (&child.Supervisor{}).Run(ctx, func(context.Context) (time.Duration, error) { return 0, errDied })

		if took := time.Since(began); err != nil || took != 100*time.Millisecond {
			t.Errorf("ended after %s with %v", took, err)
		}
	})
}
