package backoff_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stator-project/stator/internal/backoff"
)

func ExampleBackoff() {
	pauses := backoff.Backoff{Min: 250 * time.Millisecond, Max: time.Second}
	for range 4 {
		fmt.Println(pauses.Next())
	}
	pauses.Reset()
	fmt.Println(pauses.Next())
	// Output:
	// 250ms
	// 500ms
	// 1s
	// 1s
	// 250ms
}

// TestPausesDoubleUpToMax also covers a Max that is no multiple of Min.
func TestPausesDoubleUpToMax(t *testing.T) {
	pauses := backoff.Backoff{Min: 100 * time.Millisecond, Max: 350 * time.Millisecond}

	var got []time.Duration
	for range 4 {
		got = append(got, pauses.Next())
	}

	const ms = time.Millisecond
	if want := []time.Duration{100 * ms, 200 * ms, 350 * ms, 350 * ms}; !slices.Equal(got, want) {
		t.Errorf("pauses %v, want %v", got, want)
	}
}

// TestWaitSleepsForThePause uses a virtual clock.
func TestWaitSleepsForThePause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pauses := backoff.Backoff{Min: time.Second, Max: time.Minute}
		began := time.Now()

		for range 3 {
			if err := pauses.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
		}

		if took := time.Since(began); took != 7*time.Second {
			t.Errorf("three pauses took %s, want 1 s + 2 s + 4 s", took)
		}
	})
}

// TestSleepEndsWithItsContext: nothing waits for a pause that is no longer needed.
func TestSleepEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()

		err := backoff.Sleep(ctx, time.Hour)

		if took := time.Since(began); !errors.Is(err, context.DeadlineExceeded) || took != time.Second {
			t.Errorf("ended after %s with %v", took, err)
		}
	})
}

func TestEvery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 3500*time.Millisecond)
		defer cancel()
		began := time.Now()
		var calls []time.Duration
		backoff.Every(ctx, time.Second, func(now time.Time) { calls = append(calls, now.Sub(began)) })

		if want := []time.Duration{time.Second, 2 * time.Second, 3 * time.Second}; !slices.Equal(calls, want) {
			t.Errorf("calls after %v, want %v", calls, want)
		}
		if took := time.Since(began); took != 3500*time.Millisecond {
			t.Errorf("returned after %v, want the end of the context", took)
		}
	})
}
