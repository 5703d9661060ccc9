package programs

import (
	"math/rand/v2"
	"testing"
	"time"
)

var start = time.Unix(1_700_000_000, 0)

// limit is the longest time for which the programs of these tests are held back.
const limit = 3 * time.Minute

// TestAdmission: a program is admitted while contexts leave room. Its later steps are while their contexts are cached, and one that pauses for
// long makes room.
func TestAdmission(t *testing.T) {
	var x Table
	at := func(s int) time.Time { return start.Add(time.Duration(s) * time.Second) }
	admits := func(s, tokens, cached, capacity, now int) bool {
		return x.Admits(Step{uint64(s), tokens, cached}, capacity, limit, at(now))
	}
	if !admits(1, 5000, 0, 1000, 0) {
		t.Error("a program that is alone was held back")
	}
	x.Began(Step{Session: 1, Tokens: 700}, at(0))
	for _, c := range []struct {
		session, tokens, capacity int
		want                      bool
	}{
		{1, 9000, 1000, true}, {2, 300, 1000, true}, {2, 301, 1000, false}, {2, 9000, 0, true}, {0, 9000, 1000, true},
	} {
		if got := admits(c.session, c.tokens, 0, c.capacity, 1); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}

	x.Ended(1, at(10))
	x.Ended(7, at(10)) // of a program that is not known
	if admits(2, 400, 0, 1000, 69) || !admits(2, 400, 0, 1000, 71) {
		t.Error("a program whose pause is long did not make room")
	}
	x.Began(Step{Session: 2, Tokens: 1000}, at(71))
	x.Began(Step{Session: 2, Tokens: 100}, at(72)) // a sub-agent, or a compacted context
	if admits(3, 101, 0, 1000, 73) || !admits(3, 100, 0, 1000, 73) {
		t.Error("the largest context did not shrink by a tenth")
	}
	if admits(1, 710, 349, 1000, 73) || !admits(1, 710, 350, 1000, 73) {
		t.Error("a later step did not go by the part of its context that is cached")
	}
	if admits(3, 101, 0, 1000, 671) || !admits(3, 101, 0, 1000, 673) {
		t.Error("a request without an end did not count for ten minutes")
	}
}

// TestIdleFollowsPauses: with short pauses a program makes room soon, and with long ones after a minute.
func TestIdleFollowsPauses(t *testing.T) {
	for pause, away := range map[time.Duration]time.Duration{
		5 * time.Second: 5 * time.Second, 10 * time.Millisecond: minIdle, 40 * time.Second: 40 * time.Second, 2 * time.Minute: maxIdle,
	} {
		var x Table
		now := start
		for range pauseKeep {
			x.Began(Step{Session: 1, Tokens: 1000}, now)
			x.Ended(1, now)
			now = now.Add(pause)
		}
		last := now.Add(-pause)
		other := Step{Session: 2, Tokens: 1}
		if x.Admits(other, 1000, limit, last.Add(away)) || !x.Admits(other, 1000, limit, last.Add(away+1)) {
			t.Errorf("pauses of %v: the program did not make room after %v", pause, away)
		}
	}
}

// TestWorkIsLearned: the expected work is the context times the steps that are left, by the programs that have ended.
func TestWorkIsLearned(t *testing.T) {
	var x Table
	now := start
	expect := func(s Step, want float64) {
		t.Helper()
		if _, work := x.Hold(s, limit, now); work != want {
			t.Errorf("work %v of %+v, want %v", work, s, want)
		}
		x.EndHold(s.Session, 0, now)
	}
	expect(Step{Session: 100, Tokens: 10}, 10)

	for session, steps := range []int{0, 2, 4, 12} {
		for range steps {
			x.Began(Step{Session: uint64(session), Tokens: 1}, now)
			x.Ended(uint64(session), now)
		}
	}
	now = now.Add(time.Hour)
	for range 2 { // programs that were present are away, and are forgotten after that
		x.Admits(Step{Session: 99, Tokens: 1}, 1, limit, now)
		now = now.Add(time.Hour)
	}
	expect(Step{Session: 101, Tokens: 10}, 60) // (2 + 4 + 12) / 3
	for range 3 {
		x.Began(Step{Session: 5, Tokens: 1}, now)
	}
	expect(Step{Session: 5, Tokens: 10}, 50) // (1 + 9) / 2
	for range 20 {
		x.Began(Step{Session: 6, Tokens: 1}, now)
	}
	expect(Step{Session: 6, Tokens: 10}, 200)
}

// TestShortProgramsAreHeldShortly: where programs take fifteen seconds, one is held back for at most twice that. The time for which they were
// held back does not count.
func TestShortProgramsAreHeldShortly(t *testing.T) {
	var x Table
	now := start
	s := Step{Session: 1, Tokens: 1000}
	if left, _ := x.Hold(s, limit, now); left != limit {
		t.Errorf("no program has ended, and one is held back for %v", left)
	}
	now = now.Add(time.Minute)
	x.EndHold(s.Session, time.Minute, now)
	for range 3 {
		x.Began(s, now)
		now = now.Add(5 * time.Second)
		x.Ended(s.Session, now)
	}
	now = now.Add(time.Hour) // the program is forgotten
	for range 2 {
		x.Admits(Step{Session: 9, Tokens: 1}, 1, limit, now)
		now = now.Add(time.Hour)
	}

	s.Session = 2
	if left, _ := x.Hold(s, limit, now); left != 30*time.Second {
		t.Errorf("one of 15 s has ended, and the next is held back for up to %v", left)
	}
	x.EndHold(s.Session, 20*time.Second, now)
	if left, _ := x.Hold(s, limit, now); left != 10*time.Second {
		t.Errorf("after a hold of 20 s it is held back for up to %v", left)
	}
	if x.Began(Step{Session: 3, Tokens: 1000}, now); x.Admits(s, 1000, limit, now) {
		t.Error("it was not held back for the rest")
	}
	if x.EndHold(s.Session, 10*time.Second, now); !x.Admits(s, 1000, limit, now) {
		t.Error("it was held back for longer")
	}
}

// TestNoProgramStarves: whatever the load and the order in which steps go, all steps of a program together are held back for no longer
// than the limit, if each of them is asked about again in time.
func TestNoProgramStarves(t *testing.T) {
	const tick = time.Second
	type step struct {
		Step
		since time.Time
	}
	for seed := range uint64(20) {
		var x Table
		rng := rand.New(rand.NewPCG(seed, 1))
		now := start
		held := map[uint64]time.Duration{}
		waiting := map[uint64]step{}
		runs := map[uint64]time.Time{}
		for range 5000 {
			now = now.Add(tick)
			for session, end := range runs {
				if now.After(end) {
					x.Ended(session, now)
					delete(runs, session)
				}
			}

			session := 1 + rng.Uint64N(40)
			_, isRunning := runs[session]
			if _, waits := waiting[session]; !waits && !isRunning {
				waiting[session] = step{Step{Session: session, Tokens: 200 + rng.IntN(800)}, now}
				x.Hold(waiting[session].Step, limit, now)
			}
			for session, s := range waiting {
				waited := now.Sub(s.since)
				if x.Admits(s.Step, 1000, limit, now) || held[session]+waited >= limit {
					x.Began(s.Step, now)
					x.EndHold(session, waited, now)
					held[session] += waited
					runs[session] = now.Add(time.Duration(rng.IntN(60)) * time.Second)
					delete(waiting, session)
				}
				if held[session] > limit+tick {
					t.Fatalf("seed %d: program %d was held back for %v", seed, session, held[session])
				}
			}
			for session := range held {
				if _, known := x.bySession[session]; !known {
					delete(held, session) // if it comes back, it is a new program
				}
			}
		}
	}
}

// TestSums compares the sums of a table with the sums over its programs, after random steps.
func TestSums(t *testing.T) {
	var x Table
	rng := rand.New(rand.NewPCG(1, 2))
	now := start
	for range 20_000 {
		now = now.Add(time.Duration(rng.IntN(2000)) * time.Millisecond)
		s := Step{Session: uint64(rng.IntN(100)), Tokens: rng.IntN(10_000)}
		switch rng.IntN(5) {
		case 0:
			x.Began(s, now)
		case 1:
			x.Ended(s.Session, now)
		case 2:
			if s.Session != 0 {
				x.Hold(s, limit, now)
			}
		case 3:
			x.EndHold(s.Session, time.Second, now)
		default:
			x.Admits(s, 1, limit, now)
		}
		sum, present := 0, 0
		for s, p := range x.bySession {
			if p.present {
				sum += p.tokens
				present++
			}
			if x.byUntil[p.place] != p || s != p.session || s == 0 || p.runs < 0 || p.waits < 0 {
				t.Fatalf("program %d is not at its place", s)
			}
		}
		if sum != x.tokens || present != x.present || len(x.byUntil) != len(x.bySession) || len(x.lengths) > lengthKeep {
			t.Fatalf("%d tokens in %d programs, want %d in %d", x.tokens, x.present, sum, present)
		}
	}
}
