package fleet_test

import (
	"testing"
	"time"

	"github.com/stator-project/stator/internal/fleet"
)

// TestLagExceedsTheLeastAge: the lag is the excess of ages over the least age of the last minute. A new one counts for an eighth. Clocks
// that differ, and clocks that step, are no lag.
func TestLagExceedsTheLeastAge(t *testing.T) {
	for _, skew := range []time.Duration{0, 200 * time.Millisecond, -time.Hour, time.Hour} {
		var l fleet.Load
		for i, c := range []struct{ at, age, want time.Duration }{
			{0, 0, 0},
			{time.Second, 80 * time.Millisecond, 10 * time.Millisecond},
			{2 * time.Second, 10 * time.Millisecond, 10 * time.Millisecond},
			{3 * time.Second, -time.Minute, 8750 * time.Microsecond},                  // a clock steps: the age is the least at once
			{4 * time.Second, 0, 7656250},                                             // and back: too far to be lag
			{5 * time.Second, 500 * time.Millisecond, 69199218},                       // a step that may be lag
			{40 * time.Second, 500 * time.Millisecond, 123049316},                     // for a while
			{75 * time.Second, 500 * time.Millisecond, 107668152},                     // until the older ages are forgotten
			{76 * time.Second, 508 * time.Millisecond, 107668152 - 107668152/8 + 1e6}, // and so on from there
		} {
			l.ObserveLag(skew+c.age, time.Unix(1000, 0).Add(c.at))
			if got := l.Lag(); (got - c.want).Abs() > time.Microsecond {
				t.Errorf("skew %v, age %d, %v: lag %v, want %v", skew, i, c.age, got, c.want)
			}
		}
	}
}

// TestSkewDoesNotShortenPrefills: the engine's clock is 200 ms behind. Prefills of 300 ms whose end is
// observed at once are learned as 300 ms.
func TestSkewDoesNotShortenPrefills(t *testing.T) {
	l := &fleet.Load{}
	now := time.Unix(1000, 0)
	for range 6 {
		booked := now
		prefill := fleet.Amount{Requests: 1, PrefillTokens: 1000, PrefillTime: 300 * time.Millisecond}
		l.PrefillBegins(false, now)
		l.Add(prefill, time.Unix(1000, 0))

		now = now.Add(300 * time.Millisecond)
		published := now.Add(-200 * time.Millisecond)
		l.ObserveLag(now.Sub(published), now)
		l.Add(prefill.Negative(), time.Unix(1000, 0))
		if e := l.PrefillObserved(booked, now.Add(-l.Lag())); e.Took != 300*time.Millisecond || !e.Sure {
			t.Fatalf("with a lag of %v it took %v (sure %v)", l.Lag(), e.Took, e.Sure)
		}
		now = now.Add(time.Second)
	}
}

// TestPromptsGather: a prompt that comes while a rank computes another one is computed in the next pass, with the prompts
// that come until that begins.
func TestPromptsGather(t *testing.T) {
	var l fleet.Load
	at := func(ms int) time.Time { return time.Unix(1000, 0).Add(time.Duration(ms) * time.Millisecond) }
	prefill := fleet.Amount{Requests: 1, PrefillTokens: 1000, PrefillTime: 30 * time.Millisecond}
	for _, step := range []struct {
		at            int
		before, after bool // a prompt that is booked then
	}{
		{0, false, false},  // an idle rank begins at once
		{10, false, true},  // the next pass begins when the first one has ended
		{20, true, true},   // and has both prompts
		{30, false, true},  // it has begun, so this prompt waits until they are computed
		{89, true, true},   // which takes 60 ms
		{90, false, true},  // the third pass has two prompts
		{300, false, true}, // the prompts before are overdue
	} {
		if got := l.IsGathering(at(step.at)); got != step.before {
			t.Errorf("after %d ms and before a booking: %v", step.at, got)
		}
		l.PrefillBegins(false, at(step.at))
		l.Add(prefill, time.Unix(1000, 0))
		if got := l.IsGathering(at(step.at)); got != step.after {
			t.Errorf("after %d ms and a booking: %v", step.at, got)
		}
	}
}

// TestPromptsGatherDuringAStep: a rank that decodes begins a pass when its step has ended, on average after half of it.
func TestPromptsGatherDuringAStep(t *testing.T) {
	var l fleet.Load
	at := func(ms int) time.Time { return time.Unix(1000, 0).Add(time.Duration(ms) * time.Millisecond) }
	l.SetReport(fleet.Report{At: at(0), Running: 1, Gaps: 100, GapTime: 2 * time.Second}, &fleet.Worker{Blocks: 100})
	l.SetReport(fleet.Report{At: at(1000), Running: 1, Gaps: 150, GapTime: 3 * time.Second}, &fleet.Worker{Blocks: 100})
	l.PrefillBegins(false, at(2000))
	if !l.IsGathering(at(2009)) || l.IsGathering(at(2010)) {
		t.Error("the pass does not begin after half of a step of 20 ms")
	}
}

// TestIntervalsGoOn: the work of an engine is known once it has computed enough prompts since a report, 10 in each second here. If ends of
// prompts are guessed, it takes more of them. If these have many tokens, the second after them is not known: the engine may compute some of
// them still.
func TestIntervalsGoOn(t *testing.T) {
	for _, c := range []struct {
		seen    bool
		tokens  int64 // of a prompt
		seconds int   // until the work is known
		after   bool  // the work of the next second is known
	}{{true, 100, 2, true}, {false, 100, 7, true}, {true, 1000, 2, true}, {false, 1000, 7, false}} {
		var l fleet.Load
		at := func(ms int) time.Time { return time.Unix(1000, 0).Add(time.Duration(ms) * time.Millisecond) }
		prefill := fleet.Amount{PrefillTokens: c.tokens, PrefillTime: 10 * time.Millisecond}
		l.Add(fleet.Amount{Requests: 20, DecodeBlocks: 100}, at(0))
		report := func(second int) fleet.Interval {
			return l.SetReport(fleet.Report{At: at(1000 * second), Running: 20, Gaps: 1000 * uint64(second+1),
				GapTime: time.Duration(second+1) * 20 * time.Second}, &fleet.Worker{Blocks: 1000})
		}
		report(0)
		for second := 1; second <= 2*c.seconds; second++ {
			for i := range 10 {
				l.PrefillBegins(false, at(1000*second-1000+50*i))
				l.Add(prefill, time.Unix(1000, 0))
				l.PrefillEnds(prefill, c.seen, at(1000*second-990+50*i))
			}
			i := report(second)
			took, passes, ok := i.Decoded()
			if ok != (second%c.seconds == 0) {
				t.Errorf("ends are seen: %v; after %d s the work is known: %v", c.seen, second, ok)
			}
			if want := time.Duration(c.seconds) * time.Second; ok && (took != want || passes != 50*want.Seconds() ||
				i.Tokens != float64(10*c.tokens)*want.Seconds() || i.Passes != 10*want.Seconds()) {
				t.Errorf("%s, %g passes, of them %g with %g tokens", took, passes, i.Passes, i.Tokens)
			}
		}
		after := report(2*c.seconds + 1)
		if _, _, ok := after.Decoded(); ok != c.after {
			t.Errorf("ends of prompts of %d tokens are seen: %v; the work of a second without prompts is known: %v", c.tokens, c.seen, ok)
		}
	}
}

// TestPeriodsWithCachedPrompts: a period is known although the end of a prompt of few tokens was guessed, and not if that had many.
func TestPeriodsWithCachedPrompts(t *testing.T) {
	for guessed, want := range map[int64]bool{50: true, 500: false} {
		var l fleet.Load
		at := func(ms int) time.Time { return time.Unix(1000, 0).Add(time.Duration(ms) * time.Millisecond) }
		amount := func(tokens int64) fleet.Amount {
			return fleet.Amount{PrefillTokens: tokens, PrefillTime: time.Duration(tokens) * time.Microsecond}
		}
		for range 20 { // the first prefills of an engine show nothing
			l.PrefillObserved(at(-10), at(-5))
		}
		l.PrefillBegins(false, at(0))
		l.Add(amount(1000), at(0))
		l.Add(amount(guessed), at(0))
		l.PrefillEnds(amount(guessed), false, at(90))
		l.PrefillEnds(amount(1000), true, at(100))
		ended := l.PrefillObserved(at(0), at(100))
		period, ok := l.EndPeriod(1000, &ended)
		if ok != want || period.Tokens != 1000+guessed || period.Took != 100*time.Millisecond {
			t.Errorf("guessed end of %d tokens: known: %v, %+v", guessed, ok, period)
		}
	}
}

// TestHeldPrefills: a prompt waits for 3 s until a request has ended. It is not late, and the period in which it is computed teaches nothing.
// The one after does.
func TestHeldPrefills(t *testing.T) {
	var l fleet.Load
	at := func(ms int) time.Time { return time.Unix(1000, 0).Add(time.Duration(ms) * time.Millisecond) }
	for range 20 { // the first prefills of an engine show nothing
		l.PrefillObserved(at(-10), at(-5))
	}
	prefill := fleet.Amount{PrefillTokens: 1000, PrefillTime: 100 * time.Millisecond}
	for _, c := range []struct {
		begins, ends int
		held         bool
	}{{0, 3000, true}, {4000, 4100, false}} {
		l.PrefillBegins(c.held, at(c.begins))
		l.Add(prefill, at(c.begins))
		if wait := l.Wait(at(c.begins + 1500)); c.held && wait != prefill.PrefillTime/8 {
			t.Errorf("a held prefill is %s late", wait)
		}
		l.PrefillEnds(prefill, true, at(c.ends))
		ended := l.PrefillObserved(at(c.begins), at(c.ends))
		if _, ok := l.EndPeriod(1000, &ended); ok == c.held {
			t.Errorf("held: %v; the time of the period is known: %v", c.held, ok)
		}
	}
}

// TestPromptsOfOtherReplicas: prompts that the engine has computed for other replicas are part of its work. Their publications show the
// tokens that are left.
func TestPromptsOfOtherReplicas(t *testing.T) {
	var l fleet.Load
	at := func(s int) time.Time { return time.Unix(1000+int64(s), 0) }
	running := fleet.Amount{Requests: 20, DecodeBlocks: 100}
	computing := running
	computing.PrefillTokens = 20_000
	l.SetPeer(fleet.Amount{}, running, at(0))
	report := func(second int) fleet.Interval {
		return l.SetReport(fleet.Report{At: at(second), Running: 20, Gaps: 1000 * uint64(second+1),
			GapTime: time.Duration(second+1) * 20 * time.Second}, &fleet.Worker{Blocks: 1000})
	}
	report(0)
	for range 6 { // each in three passes
		l.SetPeer(running, computing, at(0))
		l.SetPeer(computing, running, at(0))
	}
	if i := report(1); i.Tokens != 120_000 || i.Passes != 18 {
		t.Errorf("%g tokens in %g passes", i.Tokens, i.Passes)
	}
}

// TestUnseen: other replicas are expected to have booked as much as this one in the last 15 ms.
func TestUnseen(t *testing.T) {
	var l fleet.Load
	at := func(ms int) time.Time { return time.Unix(1000, 0).Add(time.Duration(ms) * time.Millisecond) }
	a := fleet.Amount{Requests: 1, PrefillTokens: 100, DecodeBlocks: 7, PrefillTime: time.Millisecond}
	l.Add(a, at(0))
	l.Add(a, at(10))
	l.Add(a.Prefill().Negative(), at(0)) // one is computed
	twice := fleet.Amount{Requests: 4, PrefillTokens: 400, DecodeBlocks: 28, PrefillTime: 4 * time.Millisecond}
	for _, c := range []struct {
		others, at int
		want       fleet.Amount
	}{{2, 15, twice}, {2, 16, fleet.Amount{}}, {0, 15, fleet.Amount{}}, {2, -1, fleet.Amount{}}} {
		if got := l.Unseen(c.others, at(c.at)); got != c.want {
			t.Errorf("%d others, after %d ms: %+v", c.others, c.at, got)
		}
	}
	l.Add(a, at(30))
	if got := l.Unseen(1, at(30)); got != a {
		t.Errorf("a new moment has %+v", got)
	}
}

// TestOvertaken: the end of a request shows that the prompts of the requests which were booked before it are computed.
func TestOvertaken(t *testing.T) {
	var l fleet.Load
	at := func(s int64) time.Time { return time.Unix(1000+s, 0) }
	if l.IsOvertaken(at(0)) {
		t.Error("no request has ended")
	}
	l.Served(at(5))
	l.Served(at(3)) // an earlier one that ends later changes nothing
	if !l.IsOvertaken(at(4)) || l.IsOvertaken(at(5)) || l.IsOvertaken(at(6)) {
		t.Error("the request that was booked after 5 s was served, so those before it are overtaken, and no others")
	}
}

// TestUsualLatenessIsExpected: if the ends of prefills are usually seen 900 ms late, none is late at that time. A single stall changes
// little, and beside prefills of other replicas no prefill counts as late.
func TestUsualLatenessIsExpected(t *testing.T) {
	const takes = 100 * time.Millisecond
	now := time.Unix(1000, 0)
	prefill := fleet.Amount{PrefillTokens: 100, PrefillTime: takes}
	book := func(l *fleet.Load) {
		now = now.Add(time.Minute)
		l.PrefillBegins(false, now)
		l.Add(prefill, time.Unix(1000, 0))
	}
	var slow, stalled fleet.Load
	for range 20 {
		book(&slow)
		slow.PrefillEnds(prefill, true, now.Add(takes+900*time.Millisecond))
	}
	book(&stalled)
	stalled.PrefillEnds(prefill, true, now.Add(9*time.Second))

	book(&slow)
	if wait := slow.Wait(now.Add(takes + 900*time.Millisecond)); wait != takes/8 {
		t.Errorf("a prompt whose event comes as late as usual: wait %s", wait)
	}
	if wait := slow.Wait(now.Add(takes + 1900*time.Millisecond)); wait < 900*time.Millisecond {
		t.Errorf("one that comes a second later: wait %s", wait)
	}

	book(&stalled)
	if wait := stalled.Wait(now.Add(takes + 900*time.Millisecond)); wait < 700*time.Millisecond {
		t.Errorf("after one stall: wait %s", wait)
	}
	stalled.SetPeer(fleet.Amount{}, prefill, now)
	if wait := stalled.Wait(now.Add(takes + 900*time.Millisecond)); wait != 2*takes/8 {
		t.Errorf("beside another replica's prefill: wait %s", wait)
	}
}

// The wait on a rank is the time of the prefills booked there, less the time since it began with the first; and a rank that takes longer is
// not estimated to be nearly done.
func TestWait(t *testing.T) {
	var l fleet.Load
	at := func(ms int) time.Time { return time.Unix(1000, 0).Add(time.Duration(ms) * time.Millisecond) }
	var booked []time.Time
	book := func(ms, takes int) {
		booked = append(booked, at(ms))
		l.PrefillBegins(false, at(ms))
		l.Add(fleet.Amount{Requests: 1, PrefillTokens: int64(takes), PrefillTime: time.Duration(takes) * time.Millisecond}, at(ms))
	}
	done := func(ms, takes int) time.Duration {
		l.PrefillEnds(fleet.Amount{PrefillTokens: int64(takes), PrefillTime: time.Duration(takes) * time.Millisecond}, true, at(ms))
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
	wait("both take a little longer", 590, 37.5)
	wait("both are late", 900, 600)
	wait("they are so late that their events were missed", 10_301, 37.5)
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
	l.PrefillBegins(false, at(2000))
	l.Add(fleet.Amount{PrefillTime: time.Millisecond}, at(2000))
	l.SetPeer(fleet.Amount{}, fleet.Amount{PrefillTime: time.Millisecond}, at(2001))
	if p := l.PrefillObserved(at(2000), at(2010)); p.Sure || p.Alone {
		t.Error("another replica's prefill ran beside it")
	}
	if l.View(at(2010), 0).Pace != 1 {
		t.Errorf("pace %v of an unknown rank", l.View(at(2010), 0).Pace)
	}
	for range 200 {
		l.ObservePace(1, 200*time.Millisecond, 100*time.Millisecond, at(3000))
	}
	if p := l.View(at(3000), 0).Pace; p < 1.9 || p > 2.1 {
		t.Errorf("pace %v of a rank half as fast", p)
	}
}

// TestSlots: the number that the options name counts unless more requests ran. Then the number counts that reports have shown, and the usual
// one until more ran.
func TestSlots(t *testing.T) {
	var l fleet.Load
	now := time.Unix(1000, 0)
	check := func(when string, options, want int) {
		t.Helper()
		if got := l.View(now, options).Slots; got != want {
			t.Errorf("%s: %d slots, want %d", when, got, want)
		}
	}
	check("nothing is known", 0, 256)
	check("the engine names its slots", 64, 64)
	l.SetReport(fleet.Report{At: now, Running: 200}, &fleet.Worker{Blocks: 1000})
	check("fewer run", 0, 256)
	l.SetReport(fleet.Report{At: now, Running: 300}, &fleet.Worker{Blocks: 1000})
	check("more run", 0, 0)
	check("more run, and the engine names its slots", 1024, 1024)
	for range 3 {
		l.SetReport(fleet.Report{At: now, Running: 512, Waiting: 5}, &fleet.Worker{Blocks: 1000})
	}
	check("others wait", 0, 512)
	check("others wait for room in the cache", 1024, 1024)
	check("more run than the options name", 500, 512)

	// The passes of an engine that only prefills are full of prompts, so others wait although it has slots.
	l = fleet.Load{}
	for range 3 {
		l.SetReport(fleet.Report{At: now, Running: 8, Waiting: 5}, &fleet.Worker{Role: fleet.Prefill})
	}
	check("prompts fill its passes", 0, 256)
}

// TestMeanAge: the age of an idle rank's requests is not known, and a request that goes takes its time with it.
func TestMeanAge(t *testing.T) {
	var l fleet.Load
	now := time.Unix(1000, 0)
	if l.View(now, 0).Aged {
		t.Error("an idle rank has an age")
	}
	one, two := fleet.Amount{Requests: 1}, fleet.Amount{Requests: 2}
	l.Add(one, now.Add(-6*time.Second))
	l.Add(two, now)
	if v := l.View(now, 0); v.Age != 2*time.Second || !v.Aged {
		t.Errorf("the mean age is %v (%v), want 2s", v.Age, v.Aged)
	}
	l.Add(one.Negative(), now.Add(-6*time.Second))
	if v := l.View(now.Add(time.Second), 0); v.Age != time.Second || !v.Aged {
		t.Errorf("the mean age is %v (%v), want 1s", v.Age, v.Aged)
	}
}

// TestIsAdmitted: a prompt is computed when a report after its arrival shows no waiting request, and it has had its time since then.
func TestIsAdmitted(t *testing.T) {
	at := func(ms int) time.Time { return time.Unix(1000, 0).Add(time.Duration(ms) * time.Millisecond) }
	for _, c := range []struct {
		when            string
		booked, waiting int
		now             int
		want            bool
	}{
		{"it had come", 800, 0, 1200, true},
		{"it has not had its time", 800, 0, 1050, false},
		{"it may have been on its way", 980, 0, 1200, false},
		{"it came later", 1010, 0, 1200, false},
		{"others waited", 800, 1, 1200, false},
	} {
		var l fleet.Load
		l.SetReport(fleet.Report{At: at(1000), Running: 4, Waiting: c.waiting}, &fleet.Worker{})
		if got := l.IsAdmitted(at(c.booked), 100*time.Millisecond, at(c.now)); got != c.want {
			t.Errorf("%s: admitted %v, want %v", c.when, got, c.want)
		}
	}
}
