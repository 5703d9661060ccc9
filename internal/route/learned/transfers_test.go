package learned

import (
	"testing"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/perfmodel"
)

var start = time.Unix(1000, 0)

// TestTransfersByLevel: what is observed at one level changes no other one that has observations. A level without any has the times of the
// nearest one, and of the wider one of two.
func TestTransfersByLevel(t *testing.T) {
	c := NewSpeeds(nil).Of(&fleet.Worker{Model: "m"})
	first := c.Transfers(start)[fleet.Apart]
	for level, line := range c.Transfers(start) {
		if line != first {
			t.Errorf("%s begins with %s, and %s with %s", fleet.Level(level), line, fleet.Apart, first)
		}
	}

	learn := func(level fleet.Level, took time.Duration) {
		for range 60 {
			c.transfers.observe(level, perfmodel.Work{Prefills: 1, Tokens: 4000}, took, start)
		}
	}
	expect := func(when string, want ...time.Duration) {
		t.Helper()
		for level, line := range c.Transfers(start) {
			got, want := line.Prefill(4000), want[level]
			if got < want*9/10 || got > want*11/10 {
				t.Errorf("%s, %s: %v, want %v", when, fleet.Level(level), got, want)
			}
		}
	}
	const far, rack, nvlink = time.Second, 40 * time.Millisecond, 10 * time.Millisecond
	learn(fleet.Apart, far)
	expect("transfers between zones", far, far, far, far)
	learn(fleet.InNVLink, nvlink)
	expect("and by NVLink", far, far, nvlink, nvlink)
	learn(fleet.InRack, rack)
	expect("and in a rack", far, far, rack, nvlink)
	if lines := c.Transfers(start); lines[fleet.InRack].Observed != 60 || lines[fleet.InZone].Observed != 0 {
		t.Errorf("observations: %s in a rack, %s in a zone", lines[fleet.InRack], lines[fleet.InZone])
	}
}

// TestTransfersAreTriedAgain: while no transfer between zones is observed, their time falls towards the time within a zone, so that they are
// chosen again, and one that is observed shows whether the line is still slow.
func TestTransfersAreTriedAgain(t *testing.T) {
	c := NewSpeeds(nil).Of(&fleet.Worker{Model: "m"})
	work := perfmodel.Work{Prefills: 1, Tokens: 4000}
	const near, far = 10 * time.Millisecond, time.Second
	learn := func(level fleet.Level, took time.Duration, now time.Time) {
		for range 100 {
			c.transfers.observe(level, work, took, now)
		}
	}
	learn(fleet.InZone, near, start)
	learn(fleet.Apart, far, start)
	learn(fleet.InZone, near, start.Add(time.Hour))

	expect := func(when string, after, least, most time.Duration) {
		t.Helper()
		lines := c.Transfers(start.Add(after))
		if got := lines[fleet.Apart].Prefill(4000); got < least || got > most {
			t.Errorf("%s: %v between zones, want %v to %v", when, got, least, most)
		}
		if got := lines[fleet.InZone].Prefill(4000); got < near*9/10 || got > near*11/10 {
			t.Errorf("%s: %v within a zone", when, got)
		}
	}
	expect("at once", transferFresh, far*9/10, far*11/10)
	expect("later", transferFresh+transferHalf, far*4/10, far*6/10)
	expect("after an hour", time.Hour, near, 2*near)
	c.transfers.observe(fleet.Apart, work, far, start.Add(time.Hour))
	expect("after one more", time.Hour, far*9/10, far*11/10)
}
