package planner

import (
	"testing"
	"time"

	"github.com/stator-project/stator/bus"
)

// TestStandstill: 20 requests/s come to two replicas that report every second, and a plan is made every two seconds. While the planner, the
// bus or a replica stands still no report arrives, and afterwards all of them do, or the last one alone. No plan sees another rate.
func TestStandstill(t *testing.T) {
	const second, begin, length = time.Second, 20, 8
	stands := func(at int) bool { return at >= begin && at < begin+length }
	for name, c := range map[string]struct {
		ticks  bool // the planner makes plans meanwhile
		queued bool // reports of that time arrive afterwards
		sent   bool // reports are made meanwhile
		clock  bool // reports have their replica's time
		which  int  // replicas whose reports do not arrive
	}{
		"planner":                          {queued: true, sent: true, clock: true, which: 2},
		"bus that keeps messages":          {ticks: true, queued: true, sent: true, clock: true, which: 2},
		"bus that loses messages":          {ticks: true, sent: true, clock: true, which: 2},
		"one replica":                      {ticks: true, clock: true, which: 1},
		"planner, replicas without a time": {queued: true, sent: true, which: 2},
		"bus, replicas without a time":     {ticks: true, sent: true, which: 2},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDemands()
			start := time.Unix(1000, 0)
			known := 0
			var waiting []*bus.Demand
			for at := 1; at < 60; at++ {
				now := start.Add(time.Duration(at) * second)
				if at == begin+length {
					for _, r := range waiting {
						d.apply(r, now)
					}
				}
				for i, replica := range []string{"a", "b"} {
					sums := uint64(10 * at)
					r := &bus.Demand{Replica: replica, Models: []bus.ModelDemand{{Model: "m", Requests: sums, Ended: sums}}}
					if c.clock {
						r.Up = time.Duration(at+100*i) * second
					}
					switch held := i < c.which && stands(at); {
					case !held:
						d.apply(r, now)
					case c.sent && c.queued:
						waiting = append(waiting, r)
					}
				}

				if at%2 == 1 || stands(at) && !c.ticks {
					continue
				}
				for _, x := range d.take(now) {
					known++
					rate := float64(x.Requests) / x.Over.Seconds()
					// A silent replica is not in the rate, so that it may fall by its share.
					if rate > 20.01 || rate < 19.99 && c.which == 2 {
						t.Errorf("second %d: %.1f requests/s over %v", at, rate, x.Over)
					}
				}
			}
			if known < 15 {
				t.Errorf("%d of 30 plans knew the rate", known)
			}
		})
	}
}

// TestRequestsThatWaitedForARouter: 10 requests/s come to a router that stands still for 5 s. Its first report afterwards has none of the
// requests that waited, and its second one, 200 ms later, has all of them. No plan sees more than 10 requests/s.
func TestRequestsThatWaitedForARouter(t *testing.T) {
	const ms = time.Millisecond
	d := newDemands()
	start := time.Unix(1000, 0)
	report := func(at time.Duration, requests uint64) {
		d.apply(&bus.Demand{Replica: "a", Up: at, Models: []bus.ModelDemand{{Model: "m", Requests: requests}}}, start.Add(at))
	}
	known, requests := 0, 0
	for at := time.Duration(0); at <= 40*time.Second; at += 100 * ms {
		sum := uint64(at / (100 * ms))
		switch {
		case at > 20*time.Second && at < 25*time.Second:
		case at == 25*time.Second:
			report(at, 200)
		case at == 25*time.Second+200*ms, at%time.Second == 0:
			report(at, sum)
		}
		if at%time.Second != 100*ms {
			continue
		}
		for _, x := range d.take(start.Add(at)) {
			known++
			requests += x.Requests
			if rate := float64(x.Requests) / x.Over.Seconds(); rate > 10.01 {
				t.Errorf("after %v: %.1f requests/s over %v", at, rate, x.Over)
			}
		}
	}
	if known < 30 || requests != 390 {
		t.Errorf("%d plans saw %d requests, want 390", known, requests)
	}
}

// Every second report of a router is lost: its rate is known all the same.
func TestLateReportsAlone(t *testing.T) {
	d := newDemands()
	start := time.Unix(1000, 0)
	known := 0
	for at := time.Second; at <= time.Minute; at += 2 * time.Second {
		sum := uint64(10 * at / time.Second)
		d.apply(&bus.Demand{Replica: "a", Up: at, Models: []bus.ModelDemand{{Model: "m", Requests: sum}}}, start.Add(at))
		for _, x := range d.take(start.Add(at)) {
			known++
			if rate := float64(x.Requests) / x.Over.Seconds(); rate > 10.01 || rate < 9.99 {
				t.Errorf("after %v: %.1f requests/s over %v", at, rate, x.Over)
			}
		}
	}
	if known < 14 {
		t.Errorf("the rate was known %d times", known)
	}
}

// Streams count since the report before, by whether they were late or slow.
func TestStreams(t *testing.T) {
	d := newDemands()
	start := time.Unix(1000, 0)
	for n := range uint64(3) {
		d.apply(&bus.Demand{Replica: "a", Models: []bus.ModelDemand{
			{Model: "m", Streams: 10 * n, Late: 4 * n, Timed: 5 * n, Slow: 2 * n},
		}}, start.Add(time.Duration(n)*time.Second))
	}
	x := d.take(start.Add(3 * time.Second))
	if len(x) != 1 || x[0].Streams != 20 || x[0].Late != 8 || x[0].Timed != 10 || x[0].Slow != 4 {
		t.Errorf("the streams of two differences: %+v", x)
	}
}
