package pick

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stator-project/stator/internal/fleet"
)

func named(names ...string) []Candidate {
	cs := candidates(make([]float64, len(names))...)
	for i, n := range names {
		cs[i].Rank.Worker = &fleet.Worker{Name: n}
	}
	return cs
}

// TestSessionStays: every router takes the same rank for a session whatever the load and the
// order of candidates, sessions are spread, and one worker less moves its own sessions alone.
func TestSessionStays(t *testing.T) {
	const sessions = 20_000
	a, b := policy(t, Session, 0), policy(t, Session, 0)
	four, three := named("a", "b", "c", "d"), named("d", "c", "a")
	got := map[string]int{}
	for i := range sessions {
		asked := &Request{Session: fmt.Sprint("session ", i)}
		four[i%4].Facts.Booked.Requests++
		one := four[a.Choose(four, asked, newRand(1))].Rank.Worker.Name
		two := three[b.Choose(three, asked, newRand(2))].Rank.Worker.Name
		if one != "b" && one != two {
			t.Fatalf("%s went from %s to %s without need", asked.Session, one, two)
		}
		got[one]++
	}
	for name, n := range got {
		if n < sessions/4*9/10 || n > sessions/4*11/10 {
			t.Errorf("%s has %d of %d sessions", name, n, sessions)
		}
	}
	// A name that anybody can reckon: it must not change with a release, or sessions would move.
	if name := four[a.Choose(four, &Request{Session: "alice"}, nil)].Rank.Worker.Name; name != "a" {
		t.Errorf("alice went to %s", name)
	}
	// The ranks of one worker share its sessions.
	ranks := named("a", "a")
	ranks[1].Rank.Number = 1
	spread := [2]int{}
	for i := range 1000 {
		spread[a.Choose(ranks, &Request{Session: fmt.Sprint(i)}, nil)]++
	}
	if spread[0] < 400 || spread[1] < 400 {
		t.Errorf("ranks have %v", spread)
	}
	ranks[0].Facts.Booked.Requests = 5
	if got := a.Choose(ranks, &Request{}, newRand(1)); got != 1 {
		t.Errorf("without a session rank %d was taken, which is busier", got)
	}
}

// TestPowerOfTwo: the busiest of many is never taken, an idle one as often as it is drawn, and the
// greatest load is far below that of random choices.
func TestPowerOfTwo(t *testing.T) {
	rng, load := newRand(1), map[string]int64{}
	for _, name := range []string{PowerOfTwo, Random} {
		cs := candidates(make([]float64, 100)...)
		p := policy(t, name, 0)
		for range 10_000 {
			cs[p.Choose(cs, &Request{}, rng)].Facts.Booked.Requests++
		}
		for i := range cs {
			load[name] = max(load[name], cs[i].Facts.Booked.Requests)
		}
	}
	if load[PowerOfTwo] > 104 || load[Random] < 115 {
		t.Errorf("greatest loads of 100: %v", load)
	}
	if got := policy(t, PowerOfTwo, 0).Choose(candidates(1), &Request{}, rng); got != 0 {
		t.Error(got)
	}
}

// TestTemperatureOfOneRequest takes the place of the policy's.
func TestTemperatureOfOneRequest(t *testing.T) {
	rng, seen := newRand(1), [2]int{}
	cs := candidates(1, 2)
	for range 1000 {
		seen[policy(t, KV, 0).Choose(cs, &Request{Temperature: 100, HasTemperature: true}, rng)]++
	}
	if seen[1] < 400 {
		t.Errorf("%v", seen)
	}
	if got := policy(t, KV, 100).Choose(cs, &Request{HasTemperature: true}, rng); got != 0 {
		t.Error("a temperature of 0 must take the cheapest")
	}
}

func newRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0)) }

// TestStickyLeavesACrowd: a session stays on its rank while that has a few requests or no more than its share, goes to another one while it
// has more, and comes back. Which other one does not depend on chance.
func TestStickyLeavesACrowd(t *testing.T) {
	cs := named("a", "b", "c")
	alice := &Request{Session: "alice"}
	home := Sticky.Choose(cs, alice, nil)
	if want := policy(t, Session, 0).Choose(cs, alice, nil); home != want {
		t.Errorf("an idle fleet: rank %d, want %d", home, want)
	}

	for _, c := range []struct {
		here, others int64
		stays        bool
	}{{4, 0, true}, {5, 0, false}, {20, 20, true}, {20, 5, true}, {21, 5, false}, {0, 9, true}} {
		for i := range cs {
			cs[i].Facts.Booked.Requests = c.others
		}
		cs[home].Facts.Booked.Requests = c.here
		got := Sticky.Choose(cs, alice, nil)
		if (got == home) != c.stays || got != Sticky.Choose(cs, alice, nil) {
			t.Errorf("%d requests there and %d on the others: rank %d, home %d", c.here, c.others, got, home)
		}
	}
	cs[home].Facts.Booked.Requests = 100
	if got := Sticky.Choose(cs, &Request{}, newRand(1)); got == home {
		t.Error("a request without a session went to the busiest rank")
	}
}
