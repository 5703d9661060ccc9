package learned

import (
	"testing"
	"time"

	"github.com/stator-project/stator/internal/fleet"
)

// TestLoadTime: the mean of loads is known for a while after the last one. Then the next one counts alone.
func TestLoadTime(t *testing.T) {
	var c Class
	now := time.Unix(1000, 0)
	expect := func(when string, want time.Duration) {
		t.Helper()
		if got := c.Loads(now)[fleet.External]; got.Token != want || got.Known() != (want > 0) {
			t.Errorf("%s: %v, want %v a token", when, got, want)
		}
	}
	l := &c.outside[fleet.External]
	expect("at first", 0)
	l.observe(100, 100*time.Millisecond, now)
	expect("after a load", time.Millisecond)
	l.observe(100, 300*time.Millisecond, now)
	expect("after two", 2*time.Millisecond)
	l.observe(100, -time.Second, now)
	if got := c.Loads(now)[fleet.External].Token; got <= time.Millisecond || got >= 2*time.Millisecond {
		t.Errorf("a load that took less than nothing: %v", got)
	}
	now = now.Add(loadLasts + 1)
	expect("later", 0)
	l.observe(10, 50*time.Millisecond, now)
	expect("after another", 5*time.Millisecond)
	if got := c.Loads(now)[fleet.Host]; got.Known() {
		t.Errorf("another tier: %v", got)
	}
}
