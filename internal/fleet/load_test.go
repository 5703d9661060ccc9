package fleet_test

import (
	"testing"
	"time"

	"github.com/stator-project/stator/internal/fleet"
)

// The first age of events counts in full, later ones by an eighth, and what clocks that differ make
// of it not at all.
func TestLag(t *testing.T) {
	var l fleet.Load
	for i, c := range []struct{ age, want time.Duration }{
		{0, 0}, {time.Second, time.Second}, {200 * time.Millisecond, 900 * time.Millisecond}, {-time.Hour, 787500 * time.Microsecond}, {time.Hour, 689062500},
	} {
		if l.ObserveLag(c.age); l.Lag() != c.want {
			t.Errorf("after age %d, %v: lag %v, want %v", i, c.age, l.Lag(), c.want)
		}
	}
}

// What waits on a rank is the time of the prefills booked there, less what has gone by since it
// began with the first; and a rank that takes longer is not estimated to be nearly done.
func TestWait(t *testing.T) {
	var l fleet.Load
	at := func(ms int) time.Time { return time.Unix(1000, 0).Add(time.Duration(ms) * time.Millisecond) }
	var booked []time.Time
	book := func(ms, takes int) {
		booked = append(booked, at(ms))
		l.PrefillBegins(at(ms))
		l.Add(fleet.Amount{Requests: 1, PrefillTokens: int64(takes), PrefillTime: time.Duration(takes) * time.Millisecond})
	}
	done := func(ms, takes int) time.Duration {
		l.Add(fleet.Amount{PrefillTokens: int64(takes), PrefillTime: time.Duration(takes) * time.Millisecond}.Negative())
		l.PrefillEnds(at(ms))
		p := l.PrefillObserved(booked[0], at(ms))
		booked = booked[1:]
		if !p.Sure || p.Alone != (ms == 1080) {
			t.Errorf("at %d ms: %+v", ms, p)
		}
		return p.Took
	}
	wait := func(when string, ms int, want float64) {
		t.Helper()
		if got := l.Wait(at(ms)); got != time.Duration(want*1e6) {
			t.Errorf("%s: wait %s, want %g ms", when, got, want)
		}
	}
	wait("idle", 0, 0)
	book(0, 100)
	book(10, 200)
	wait("two are booked, and 10 ms are gone", 10, 290)
	wait("the first takes longer than estimated", 290, 37.5) // an eighth of both
	if took := done(120, 100); took != 120*time.Millisecond {
		t.Errorf("the first took %s", took)
	}
	wait("the second has just begun", 120, 200)
	if took := done(300, 200); took != 180*time.Millisecond {
		t.Errorf("the second took %s", took)
	}
	wait("idle again", 300, 0)
	book(1000, 80)
	wait("idle for long, then booked", 1000, 80)
	done(1080, 80)
	l.PrefillBegins(at(2000))
	l.Add(fleet.Amount{PrefillTime: time.Millisecond})
	l.SetPeer(fleet.Amount{}, fleet.Amount{PrefillTime: time.Millisecond}, at(2001))
	if p := l.PrefillObserved(at(2000), at(2010)); p.Sure || p.Alone {
		t.Error("another replica's prefill ran beside it")
	}
	if l.Pace() != 1 {
		t.Errorf("pace %v of an unknown rank", l.Pace())
	}
	for range 200 {
		l.ObservePace(200*time.Millisecond, 100*time.Millisecond)
	}
	if p := l.Pace(); p < 1.9 || p > 2.1 {
		t.Errorf("pace %v of a rank half as fast", p)
	}
}
