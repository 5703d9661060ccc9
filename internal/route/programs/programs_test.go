package programs

import (
	"math/rand/v2"
	"testing"
	"time"
)

var start = time.Unix(1_700_000_000, 0)

// TestAdmission: a program is admitted while contexts leave room, its later steps always are, and a program that has left makes room.
func TestAdmission(t *testing.T) {
	var x Table
	at := func(s int) time.Time { return start.Add(time.Duration(s) * time.Second) }
	if !x.Admits(1, 5000, 1000, at(0)) {
		t.Error("a program that is alone was held back")
	}
	x.Began(1, 700, at(0))
	for _, c := range []struct {
		session  uint64
		tokens   int
		capacity int
		want     bool
	}{
		{1, 9000, 1000, true}, {2, 500, 1000, true}, {2, 501, 1000, false}, {2, 9000, 0, true}, {0, 9000, 1000, true},
	} {
		if got := x.Admits(c.session, c.tokens, c.capacity, at(1)); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}

	x.Ended(1, at(10))
	x.Ended(7, at(10)) // of a program that is not known
	if x.Admits(2, 600, 1000, at(69)) || !x.Admits(2, 600, 1000, at(71)) {
		t.Error("a program did not leave a minute after its answer")
	}
	x.Began(2, 1000, at(71))
	x.Began(2, 100, at(72)) // a sub-agent, or a compacted context
	if x.Admits(3, 301, 1000, at(73)) || !x.Admits(3, 300, 1000, at(73)) {
		t.Error("the largest context did not shrink by a tenth")
	}
	if x.Admits(3, 301, 1000, at(671)) || !x.Admits(3, 301, 1000, at(673)) {
		t.Error("a request without an end did not hold its program for ten minutes")
	}
}

// TestIdleFollowsPauses: with short pauses a program leaves soon, and with long ones after a minute.
func TestIdleFollowsPauses(t *testing.T) {
	for pause, leaves := range map[time.Duration]time.Duration{
		time.Second: 4 * time.Second, 10 * time.Millisecond: minIdle, 40 * time.Second: maxIdle,
	} {
		var x Table
		now := start
		for range pauseKeep {
			x.Began(1, 1000, now)
			x.Ended(1, now)
			now = now.Add(pause)
		}
		last := now.Add(-pause)
		if x.Admits(2, 201, 1000, last.Add(leaves)) || !x.Admits(2, 201, 1000, last.Add(leaves+1)) {
			t.Errorf("pauses of %v: the program did not leave after %v", pause, leaves)
		}
	}
}

// TestSumOfContexts compares the sum of a table with the sum over its programs, after random steps.
func TestSumOfContexts(t *testing.T) {
	var x Table
	rng := rand.New(rand.NewPCG(1, 2))
	now := start
	for range 20_000 {
		now = now.Add(time.Duration(rng.IntN(2000)) * time.Millisecond)
		session := uint64(rng.IntN(100))
		switch rng.IntN(3) {
		case 0:
			x.Began(session, rng.IntN(10_000), now)
		case 1:
			x.Ended(session, now)
		default:
			x.Admits(session, 1, 1, now)
		}
		sum := 0
		for s, p := range x.bySession {
			sum += p.tokens
			if x.byUntil[p.place] != p || s != p.session || s == 0 {
				t.Fatalf("program %d is not at its place", s)
			}
		}
		if sum != x.tokens || len(x.byUntil) != len(x.bySession) {
			t.Fatalf("%d tokens in %d programs, want %d in %d", x.tokens, len(x.byUntil), sum, len(x.bySession))
		}
	}
}
