package forecasts

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/plan/forecast"
)

// known predicts the same value always.
type known forecast.Estimate

func (k known) Observe(float64) forecast.Forecaster { return k }
func (k known) At(int) forecast.Estimate            { return forecast.Estimate(k) }

// A forecast of 10 for values of 8 and 14: errors of 2 and 4, of a mean of 11; the quantile 10 covers one of both.
func TestJudge(t *testing.T) {
	s := series{values: []float64{0, 0, 8, 14}, scored: 0}
	got := judge(known{Mean: 10}, s, 2)
	want := score{absolute: 3.0 / 11, pinball: (0.1*2 + 0.9*4) / 2 / 11, covered: 0.5}
	if math.Abs(got.absolute-want.absolute) > 1e-12 || math.Abs(got.pinball-want.pinball) > 1e-12 || got.covered != want.covered {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// The composed series has the asked rate, and the same seed gives the same series.
func TestServeGen(t *testing.T) {
	clients, err := readClients(clientsText)
	if err != nil || len(clients) != 9 {
		t.Fatal(len(clients), err)
	}
	for _, c := range clients {
		sum := 0.0
		for _, h := range c.hours {
			sum += h / 24
		}
		if math.Abs(sum-1) > 0.01 || c.rate <= 0 || c.cv <= 0 {
			t.Errorf("%+v", c)
		}
	}

	a, b := serveGen(clients, 40, 48*time.Hour, 3), serveGen(clients, 40, 48*time.Hour, 3)
	if mean := a.mean(); math.Abs(mean-40) > 4 {
		t.Errorf("%v requests/s, want 40", mean)
	}
	for i := range a.values {
		if a.values[i] != b.values[i] {
			t.Fatalf("step %d is %v, and %v in the second run", i, a.values[i], b.values[i])
		}
	}
}

// Everything runs on short series, and the output names what won.
func TestQuick(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes some seconds")
	}
	var out strings.Builder
	if err := printTables(&out, t.TempDir(), "", 1, true); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"ServeGen", "sinusoid", "spikes", "The hour of Azure is left out", "nearest to the best in the mean"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the output lacks %q", want)
		}
	}
}
