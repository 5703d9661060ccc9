package learned

import (
	"testing"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/perfmodel"
)

// TestTransfersByLevel: what is observed at one level changes no other one that has observations. A level without any has the times of the
// nearest one, and of the wider one of two.
func TestTransfersByLevel(t *testing.T) {
	c := NewSpeeds(nil).Of(&fleet.Worker{Model: "m"})
	first := c.Transfers()[fleet.Apart]
	for level, line := range c.Transfers() {
		if line != first {
			t.Errorf("%s begins with %s, and %s with %s", fleet.Level(level), line, fleet.Apart, first)
		}
	}

	learn := func(level fleet.Level, took time.Duration) {
		for range 60 {
			c.transfers.observe(level, perfmodel.Work{Prefills: 1, Tokens: 4000}, took)
		}
	}
	expect := func(when string, want ...time.Duration) {
		t.Helper()
		for level, line := range c.Transfers() {
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
	if lines := c.Transfers(); lines[fleet.InRack].Observed != 60 || lines[fleet.InZone].Observed != 0 {
		t.Errorf("observations: %s in a rack, %s in a zone", lines[fleet.InRack], lines[fleet.InZone])
	}
}
