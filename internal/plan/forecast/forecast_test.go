package forecast

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
)

// all returns a new forecaster of every model.
func all(t testing.TB, o Options) map[string]Forecaster {
	t.Helper()
	out := map[string]Forecaster{}
	for _, name := range Names() {
		f, err := New(name, o)
		if err != nil {
			t.Fatal(err)
		}
		out[name] = f
	}
	return out
}

// one returns a new forecaster.
func one(t testing.TB, name string, o Options) Forecaster {
	t.Helper()
	f, err := New(name, o)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func near(got, want, tolerance float64) bool { return math.Abs(got-want) <= tolerance }

func TestNothingObserved(t *testing.T) {
	for name, f := range all(t, Options{Season: 10}) {
		if got := f.At(1); got != (Estimate{}) {
			t.Errorf("%s predicts %v from nothing", name, got)
		}
		if got := f.Observe(math.NaN()).Observe(7).At(3); !near(got.Mean, 7, 1e-9) || got.Deviation <= 0 {
			t.Errorf("%s predicts %v from one 7", name, got)
		}
	}
}

func TestConstantSeries(t *testing.T) {
	for name, f := range all(t, Options{Season: 20}) {
		f = Warm(f, repeated(50, 200))
		for _, steps := range []int{-1, 1, 2, 7, 64, 1000, math.MaxInt} {
			if got := f.At(steps); !near(got.Mean, 50, 1e-3) || got.Deviation > 0.1 {
				t.Errorf("%s, %d steps ahead: %v", name, steps, got)
			}
		}
	}
}

func repeated(v float64, n int) []float64 {
	out := make([]float64, n)
	for i := range out {
		out[i] = v
	}
	return out
}

// series returns n values of a function of the step.
func series(n int, f func(i int) float64) []float64 {
	out := make([]float64, n)
	for i := range out {
		out[i] = f(i)
	}
	return out
}

func TestTrendIsFollowed(t *testing.T) {
	ramp := series(100, func(i int) float64 { return 10 + 2*float64(i) })
	for _, name := range []string{"kalman", "arima", "auto"} {
		f := Warm(one(t, name, Options{Damping: 1}), ramp)
		if got := f.At(5).Mean; !near(got, 10+2*104, 3) {
			t.Errorf("%s predicts %v, want 218", name, got)
		}
	}
}

func TestSeasonIsLearned(t *testing.T) {
	const season = 200
	wave := func(i int) float64 { return 100 + 50*math.Sin(2*math.Pi*float64(i)/season) }
	for _, multiplicative := range []bool{false, true} {
		f := Warm(one(t, "seasonal", Options{Season: season, Slots: 40, Multiplicative: multiplicative}), series(4*season, wave))
		for _, steps := range []int{10, 50, 100, 150} {
			if got, want := f.At(steps).Mean, wave(4*season-1+steps); !near(got, want, 6) {
				t.Errorf("multiplicative %v, %d steps ahead: %.1f, want %.1f", multiplicative, steps, got, want)
			}
		}
	}
}

// A season that the series does not have is not used: the forecast follows the trend alone.
func TestSeasonWithoutUse(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	noise := series(2000, func(int) float64 { return 100 + 20*r.NormFloat64() })
	with := Warm(one(t, "seasonal", Options{Season: 100, Slots: 100}), noise).At(16).Mean
	without := Warm(one(t, "seasonal", Options{}), noise).At(16).Mean
	if !near(with, without, 1e-9) {
		t.Errorf("%v with the season of noise, %v without", with, without)
	}
}

// Of forecasts of synthetic noise, the 0.9 quantile is exceeded by about a tenth of the values.
func TestQuantilesAreCalibrated(t *testing.T) {
	horizons := []int{1, 6, 24}
	if testing.Short() {
		horizons = horizons[1:2]
	}
	for _, c := range []struct {
		name string
		next func(r *rand.Rand, i int, last float64) float64
	}{
		{"normal", func(r *rand.Rand, _ int, _ float64) float64 { return 100 + 15*r.NormFloat64() }},
		{"random walk", func(r *rand.Rand, _ int, last float64) float64 { return math.Max(0, last+r.NormFloat64()) }},
		{"autoregression", func(r *rand.Rand, _ int, last float64) float64 { return math.Max(0, 20+0.8*last+5*r.NormFloat64()) }},
		{"wave", func(r *rand.Rand, i int, _ float64) float64 {
			return 100 + 40*math.Sin(float64(i)/40) + 8*r.NormFloat64()
		}},
	} {
		for name := range all(t, Options{Season: 251}) {
			for _, steps := range horizons {
				r := rand.New(rand.NewPCG(7, 7))
				last := 1000.0
				values := series(6000, func(i int) float64 {
					last = c.next(r, i, last)
					return last
				})

				f := one(t, name, Options{Season: 251})
				covered, n := 0, 0
				for i, v := range values[:len(values)-steps] {
					f = f.Observe(v)
					if i < 300 {
						continue
					}
					n++
					if values[i+steps] <= f.At(steps).Quantile(0.9) {
						covered++
					}
				}
				if share := float64(covered) / float64(n); share < 0.85 || share > 0.95 {
					t.Errorf("%s of %s, %d steps ahead: the 0.9 quantile covers %.3f", name, c.name, steps, share)
				}
			}
		}
	}
}

// After a long idle time, forecasts are 0, and follow new traffic within some steps.
func TestIdleTime(t *testing.T) {
	for name, f := range all(t, Options{Season: 100}) {
		f = Warm(Warm(f, repeated(40, 100)), repeated(0, 500))
		if got := f.At(6); got.Mean > 0.5 {
			t.Errorf("%s predicts %v after 500 steps without traffic", name, got)
		}
		for i := range 12 {
			f = f.Observe(30)
			if got := f.At(6).Mean; got > 120 {
				t.Errorf("%s predicts %v after %d steps of 30", name, got, i+1)
			}
		}
		if got := f.At(6).Mean; got < 20 || got > 45 {
			t.Errorf("%s predicts %v after 12 steps of 30", name, got)
		}
	}
}

func TestMissingValues(t *testing.T) {
	for name, f := range all(t, Options{Season: 100}) {
		r := rand.New(rand.NewPCG(3, 3)) // the same values for all models
		for i := range 600 {
			v := 100 + 5*r.NormFloat64()
			if i%3 == 0 || i > 300 && i < 400 {
				v = math.NaN()
			}
			f = f.Observe(v)
		}
		if got := f.At(12); !near(got.Mean, 100, max(12, 2*got.Deviation)) || got.Deviation > 15 {
			t.Errorf("%s predicts %v", name, got)
		}
		f = Warm(f, repeated(math.NaN(), 5000))
		if got := f.At(12); !near(got.Mean, 100, 40) {
			t.Errorf("%s predicts %v after 5000 steps without a value", name, got)
		}
	}
}

// Observing does not change the state that was there before.
func TestObserveReturnsTheNextState(t *testing.T) {
	for name, f := range all(t, Options{Season: 30}) {
		f = Warm(f, series(100, func(i int) float64 { return float64(i % 30) }))
		before := fmt.Sprint(f.At(1), f.At(9), f.At(64))
		a := Warm(f, repeated(1000, 50))
		b := Warm(f, repeated(0, 50))
		if after := fmt.Sprint(f.At(1), f.At(9), f.At(64)); after != before {
			t.Errorf("%s: %s before, %s after others were made", name, before, after)
		}
		if a.At(3) == b.At(3) {
			t.Errorf("%s predicts the same from different values", name)
		}
	}
}

func TestQuantile(t *testing.T) {
	e := Estimate{10, 2}
	for _, c := range []struct{ q, want float64 }{
		{0.5, 10}, {0.9, 12.563}, {0.1, 7.437}, {-1, 3.820}, {2, 16.180}, {math.NaN(), 10},
	} {
		if got := e.Quantile(c.q); !near(got, c.want, 0.001) {
			t.Errorf("quantile %v is %v, want %v", c.q, got, c.want)
		}
	}
	if got := (Estimate{1, 10}).Quantile(0.1); got != 0 {
		t.Errorf("a quantile is %v", got)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	for _, c := range []struct {
		name string
		o    Options
		want string
	}{
		{"prophet", Options{}, `"prophet" is unknown: it must be one of constant, kalman, arima, seasonal, auto`},
		{"seasonal", Options{Season: -1}, "a season of -1 steps"},
		{"seasonal", Options{Slots: 5000}, "a season of 5000 slots"},
		{"kalman", Options{R: math.NaN()}, "a variance of the Kalman filter is NaN"},
		{"kalman", Options{Damping: 2}, "damping is 2"},
	} {
		if _, err := New(c.name, c.o); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
}

// FuzzForecast: whatever is observed, estimates are numbers, finite and not negative.
func FuzzForecast(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0xf0, 0x7f, 0, 0, 0, 0, 0, 0, 0xf8, 0x7f}, uint8(3), 5)
	f.Add([]byte("0000000000000000111111111111111122222222222222223333333333333333"), uint8(0), 1)
	f.Fuzz(func(t *testing.T, data []byte, season uint8, steps int) {
		for name, m := range all(t, Options{Season: int(season), Multiplicative: season%2 == 0, Log1p: season%3 == 0}) {
			for i := 0; i+8 <= len(data); i += 8 {
				m = m.Observe(math.Float64frombits(binary.LittleEndian.Uint64(data[i:])))
				for _, h := range []int{1, 64, steps} {
					e := m.At(h)
					for _, v := range []float64{e.Mean, e.Deviation, e.Quantile(0.999)} {
						if !(v >= 0) || math.IsInf(v, 0) {
							t.Fatalf("%s, %d steps ahead: %v", name, h, e)
						}
					}
				}
			}
		}
	})
}

func BenchmarkObserve(b *testing.B) {
	for _, name := range Names() {
		b.Run(name, func(b *testing.B) {
			f := Warm(one(b, name, Options{Season: 17280}), series(300, func(i int) float64 { return float64(i % 50) }))
			b.ReportAllocs()
			for b.Loop() {
				f = f.Observe(10)
			}
		})
	}
}

// With 15 arrivals in a step, their number varies by a quarter around an unchanged rate. The forecast must not follow that.
func TestNoiseIsAveraged(t *testing.T) {
	f := one(t, "auto", Options{})
	rng := rand.New(rand.NewPCG(1, 1))
	const mean = 15
	sum, n := 0.0, 0.0
	for step := range 400 {
		f = f.Observe(math.Round(mean + math.Sqrt(mean)*rng.NormFloat64()))
		if step >= 100 {
			e := f.At(6).Mean/mean - 1
			sum += e * e
			n++
		}
	}
	if deviation := math.Sqrt(sum / n); deviation > 0.08 {
		t.Errorf("the forecast of an unchanged rate deviates by %.1f %%, want at most 8 %%", 100*deviation)
	}
}

// While no forecast for minutes ahead has been compared, its quantile does not leave the values that came: a series that varies around a
// mean is not a random walk.
func TestQuantilesBeforeLongForecastsWereCompared(t *testing.T) {
	const steps, mean, deviation = 61, 7, 4 // five minutes of five seconds; arrivals in bursts
	for _, name := range []string{"auto", "constant"} {
		for seed := range uint64(20) {
			r := rand.New(rand.NewPCG(seed, 1))
			f := one(t, name, Options{})
			highest := 0.0
			for i := range 30 {
				v := math.Max(0, mean+deviation*r.NormFloat64())
				highest = max(highest, v)
				f = f.Observe(v)
				if i < 5 {
					continue
				}
				if got := f.At(steps).Quantile(0.95); got > 2.5*highest {
					t.Errorf("%s, seed %d, after %d steps: %.1f, and the highest was %.1f", name, seed, i+1, got, highest)
				}
			}
		}
	}
}

// A series that has risen by chance in each step keeps a deviation that grows with the time ahead.
func TestQuantilesOfRandomWalkGrow(t *testing.T) {
	for _, name := range []string{"auto", "constant"} {
		r := rand.New(rand.NewPCG(3, 1))
		v := 1000.0
		f := one(t, name, Options{})
		for range 40 {
			v += 5 * r.NormFloat64()
			f = f.Observe(v)
		}
		if near, far := f.At(1).Deviation, f.At(61).Deviation; far < 3*near {
			t.Errorf("%s: %.1f one step ahead, and %.1f in 61 steps", name, near, far)
		}
	}
}
