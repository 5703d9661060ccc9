package plan

import (
	"math"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/plan/forecast"
)

// In 5 s at 20 requests/s there are 100 arrivals, which vary by 10: 2 requests/s. Only the deviation of a forecast beyond that
// counts.
func TestWithoutChance(t *testing.T) {
	for _, c := range []struct{ deviation, want float64 }{{2, 0}, {1, 0}, {math.Sqrt(13), 3}} {
		e := withoutChance(forecast.Estimate{Mean: 20, Deviation: c.deviation}, 5*time.Second)
		if e.Mean != 20 || math.Abs(e.Deviation-c.want) > 1e-9 {
			t.Errorf("deviation %v becomes %+v, want %v", c.deviation, e, c.want)
		}
	}
}
