package pick

import (
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"
	"unique"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/perfmodel"
	"github.com/stator-project/stator/internal/route/cost"
)

func candidates(totals ...float64) []Candidate {
	cs := make([]Candidate, len(totals))
	for i, total := range totals {
		cs[i].Total = total
		cs[i].Rank = &fleet.Rank{ID: fleet.RankID(i), Load: &fleet.Load{}}
	}
	return cs
}

func policy(t testing.TB, name string, temperature float64) Policy {
	p, err := New(name, temperature)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func newSeed(t testing.TB) *rand.Rand {
	s := rand.Uint64()
	t.Logf("seed %d", s)
	return rand.New(rand.NewPCG(s, 0))
}

// TestTiesAreEven: equal candidates are drawn equally often; a worse one never.
func TestTiesAreEven(t *testing.T) {
	p, rng, seen := policy(t, KV, 0), newSeed(t), [4]int{}
	cs := candidates(2, 1, 1, 1)
	for range 30_000 {
		seen[p.Choose(cs, &Request{}, rng)]++
	}
	if seen[0] != 0 {
		t.Errorf("the worst was picked %d times", seen[0])
	}
	for _, n := range seen[1:] {
		if n < 9_000 || n > 11_000 {
			t.Errorf("ties are uneven: %v", seen)
		}
	}
}

// TestCostBreaksTies: among equal totals the cost function's order counts, and chance only among equals of both.
func TestCostBreaksTies(t *testing.T) {
	p, rng := policy(t, KV, 0), newSeed(t)
	cs := candidates(1, 1, 2)
	cs[0].Tie, cs[1].Tie, cs[2].Tie = 5, 4, 0
	for range 100 {
		if got := p.Choose(cs, &Request{}, rng); got != 1 {
			t.Fatalf("picked %d", got)
		}
	}
}

// TestTemperature: the shares are those of the softmax over normalised costs.
func TestTemperature(t *testing.T) {
	p, rng, seen := policy(t, KV, 0.5), newSeed(t), [3]float64{}
	cs := candidates(10, 15, 20)
	const n = 100_000
	for range n {
		seen[p.Choose(cs, &Request{}, rng)]++
	}
	sum := 1 + math.Exp(-1) + math.Exp(-2)
	for i := range seen {
		if want := math.Exp(-float64(i)) / sum; math.Abs(seen[i]/n-want) > 0.01 {
			t.Errorf("candidate %d has share %.3f, want %.3f", i, seen[i]/n, want)
		}
	}
}

func TestPolicies(t *testing.T) {
	rng := newSeed(t)
	cs := candidates(3, 2, 1)
	robin := policy(t, RoundRobin, 0)
	for i := range 6 {
		if got := robin.Choose(cs, &Request{}, rng); got != i%3 {
			t.Errorf("turn %d went to %d", i, got)
		}
	}
	cs[0].Facts.Booked = fleet.Amount{Requests: 1, PrefillTokens: 50}
	cs[1].Facts.Booked = fleet.Amount{Requests: 1, PrefillTokens: 10}
	cs[2].Facts.Booked, cs[2].Facts.Untracked = fleet.Amount{}, 4
	if got := policy(t, LeastLoaded, 0).Choose(cs, &Request{}, rng); got != 1 {
		t.Errorf("least-loaded took %d", got)
	}
	for _, bad := range []struct {
		name string
		temp float64
	}{{"kvv", 0}, {KV, -1}, {KV, math.NaN()}} {
		if _, err := New(bad.name, bad.temp); err == nil {
			t.Errorf("%v was accepted", bad)
		}
	}
}

// TestBurstSpreads: many goroutines place the same request at once. Each must see the
// bookings of the others, so the loads end as even as if they had come one by one.
func TestBurstSpreads(t *testing.T) {
	const workers, requests = 4, 400
	b, w, now := NewBookings(BookingsConfig{}), cost.Default(), time.Unix(1000, 0)
	ranks := make([]fleet.Rank, workers)
	for i := range ranks {
		ranks[i] = fleet.Rank{ID: fleet.RankID(i), Load: &fleet.Load{}}
	}
	var wg sync.WaitGroup
	for g := range uint64(8) {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(g, 0))
			p := policy(t, KV, 0)
			for i := range requests / 8 {
				q := cost.Request{BlockSize: 16, PromptTokens: 160, Line: perfmodel.DefaultSpeed().Prefill}
				amount := fleet.Amount{Requests: 1, PrefillTokens: 160, DecodeBlocks: 10, PrefillTime: q.Line.Prefill(160)}
				for {
					cs := make([]Candidate, workers)
					for i := range cs {
						cs[i].Rank = &ranks[i]
						cs[i].Facts.Booked, cs[i].Facts.Wait = ranks[i].Load.Booked(), ranks[i].Load.Wait(now)
						var s cost.Score
						w.Score(&q, &cs[i].Facts, &s)
						cs[i].Total = s.Total
					}
					c := &cs[p.Choose(cs, &Request{}, rng)]
					if b.Start(fmt.Sprintf("%d-%d", g, i), Booking{Rank: *c.Rank, Amount: amount, At: now}, c.Facts.Booked) {
						break
					}
				}
			}
		})
	}
	wg.Wait()
	for i := range ranks {
		if got := ranks[i].Load.Booked().Requests; got < requests/workers-1 || got > requests/workers+1 {
			t.Errorf("rank %d has %d of %d requests", i, got, requests)
		}
	}
	t.Logf("%d lost races", b.Stats().LostRaces)
}

// TestNothingLeaks: whatever happens to bookings, in any order and at once, loads are never
// negative when it is quiet, and all zero when every booking has ended.
func TestNothingLeaks(t *testing.T) {
	b := NewBookings(BookingsConfig{Limit: 500})
	ranks := make([]fleet.Rank, 3)
	for i := range ranks {
		ranks[i] = fleet.Rank{ID: fleet.RankID(i), Load: &fleet.Load{}}
	}
	s := rand.Uint64()
	t.Logf("seed %d", s)
	var wg sync.WaitGroup
	for g := range uint64(4) {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(s, g))
			for i := range 20_000 {
				id, rank, at := fmt.Sprint(rng.IntN(1000)), ranks[rng.IntN(3)], time.Unix(int64(i), 0)
				switch rng.IntN(10) {
				case 0, 1, 2, 3:
					b.Start(id, Booking{Rank: rank, Caller: unique.Make(Caller{Source: fmt.Sprint(g)}), At: at,
						Amount: fleet.Amount{Requests: 1, PrefillTokens: rng.Int64N(100), DecodeBlocks: rng.Int64N(100)}}, rank.Load.Booked())
				case 4, 5, 6:
					b.End(id, Finished)
				case 7, 8:
					b.PrefillDone(id, time.Time{})
				default:
					if rng.IntN(100) == 0 {
						b.EndBefore(func(k *Booking) bool { return k.Caller.Value().Source == fmt.Sprint(g) }, at)
						b.Reconcile(rank, rng.IntN(2), at, 1000*time.Second)
					}
				}
			}
		})
	}
	wg.Wait()
	requests := int64(0)
	for _, r := range ranks {
		a := r.Load.Booked()
		if a.Requests < 0 || a.PrefillTokens < 0 || a.DecodeBlocks < 0 {
			t.Errorf("negative load %+v", a)
		}
		requests += a.Requests
	}
	if int(requests) != b.Len() || b.Len() > 500 {
		t.Errorf("%d requests on ranks, %d bookings", requests, b.Len())
	}
	for id := range 1000 {
		b.End(fmt.Sprint(id), Finished)
	}
	for i, r := range ranks {
		if a := r.Load.Booked(); a != (fleet.Amount{}) {
			t.Errorf("rank %d ends with %+v", i, a)
		}
	}
	if b.Len() != 0 {
		t.Errorf("%d bookings left", b.Len())
	}
}

// TestEndBeforeBooking: Envoy's access log may report the end of a request before its booking is made.
func TestEndBeforeBooking(t *testing.T) {
	b := NewBookings(BookingsConfig{})
	rank := fleet.Rank{Load: &fleet.Load{}}
	k := Booking{Rank: rank, At: time.Unix(0, 0), Amount: fleet.Amount{Requests: 1, PrefillTokens: 10}}

	if b.End("cancelled", Finished) {
		t.Error("a booking ended that was not made yet")
	}
	if !b.Start("cancelled", k, fleet.Amount{}) || b.Len() != 0 || rank.Load.Booked() != (fleet.Amount{}) {
		t.Errorf("%d bookings and the load %+v of a request that has ended", b.Len(), rank.Load.Booked())
	}
	if got := b.Stats().Ended[Finished]; got != 1 {
		t.Errorf("%d bookings are counted as finished, want 1", got)
	}

	// Other requests are booked, however many have ended without a booking.
	for i := range 10_000 {
		b.End(fmt.Sprint("refused-", i), Finished)
	}
	if b.Force("served", k); b.Len() != 1 || !b.End("served", Finished) {
		t.Error("a request was not booked")
	}
}

// TestEndings: what ends a booking without its access-log entry, and what does not.
func TestEndings(t *testing.T) {
	b := NewBookings(BookingsConfig{})
	rank := fleet.Rank{Load: &fleet.Load{}}
	book := func(id, source string, at int64) {
		b.Force(id, Booking{Rank: rank, Caller: unique.Make(Caller{Source: source}), At: time.Unix(at, 0), Amount: fleet.Amount{Requests: 1, PrefillTokens: 10, DecodeBlocks: 2}})
	}
	book("old", "envoy-a", 0)
	book("new", "envoy-a", 100)
	book("other", "envoy-b", 0)
	hour := time.Unix(3600, 0)
	if n := b.Reconcile(rank, 1, hour, 10*time.Second); n != 0 {
		t.Errorf("a busy engine ended %d bookings: a long request is legitimate", n)
	}
	if n := b.EndBefore(func(k *Booking) bool { return k.Caller.Value().Source == "envoy-a" }, time.Unix(50, 0)); n != 1 || b.Len() != 2 {
		t.Errorf("EndBefore ended %d, %d left", n, b.Len())
	}
	book("fresh", "envoy-a", 3595)
	if n := b.Reconcile(rank, 0, hour, 10*time.Second); n != 2 || b.Len() != 1 {
		t.Errorf("Reconcile ended %d, %d left", n, b.Len())
	}
	if !b.PrefillDone("fresh", hour) || b.PrefillDone("fresh", hour) {
		t.Error("prefill is done once")
	}
	if a := rank.Load.Booked(); a != (fleet.Amount{Requests: 1, DecodeBlocks: 2}) {
		t.Errorf("after prefill: %+v", a)
	}
	book("fresh", "envoy-b", 3600)
	if !b.End("fresh", Finished) || rank.Load.Booked() != (fleet.Amount{}) {
		t.Errorf("load is left: %+v", rank.Load.Booked())
	}
	if got := b.Stats().Ended; got != [Reasons]uint64{Finished: 1, Replaced: 1, SourceGone: 1, Reconciled: 2} {
		t.Errorf("reasons %v", got)
	}
}

// End ends the booking; false means that there is none under id (any more).
func (b *Bookings) End(id string, why Reason) bool {
	_, ok := b.EndAs(id, func(fleet.Rank) Reason { return why })
	return ok
}
