package dynamo

import (
	"math"
	"testing"
)

func predictor(t *testing.T, kind string, log1p bool) Predictor {
	t.Helper()
	c := Defaults()
	c.Predictor, c.Log1p = kind, log1p
	p, err := c.NewPredictor()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// The figures were computed by filterpy 1.4.5 with F=[[1,1],[0,1]], P=1000·I, Q=diag(1,0.1), R=10, rounded to 6 digits.
func TestKalmanGolden(t *testing.T) {
	p := predictor(t, "kalman", false)
	want := []float64{10, 12, 15, 14, 19.035392, 23.206158, 30.382929, 32.22334, 36.929723, 38.107971, 23.455742, 11.451865, 3.870155}
	for i, v := range []float64{10, 12, 15, 14, 18, 22, 30, 28, 35, 33, 5, 0, 0} {
		p = p.Add(v)
		if got := p.Predict(); math.Abs(got-want[i]) > 1e-6 {
			t.Errorf("after %d values: %v, want %v", i+1, got, want[i])
		}
	}
	for range 3 {
		p = p.Add(0)
	}
	if got := p.Predict(); got >= 0 {
		t.Errorf("%v: Dynamo's filter goes below 0", got)
	}
}

func TestPredictors(t *testing.T) {
	for _, c := range []struct {
		kind   string
		log1p  bool
		values []float64
		want   float64
	}{
		{"constant", false, nil, 0},
		{"constant", false, []float64{3, 7}, 7},
		{"constant", false, []float64{3, math.NaN()}, 0},
		{"arima", false, []float64{1, 2, 3, 4}, 4}, // fewer than five
		{"arima", false, []float64{6, 6, 6, 6, 6, 6}, 6},
		{"kalman", false, []float64{1, 2, 3, 4}, 4},
		{"kalman", true, []float64{6, 6, 6, 6, 6, 6}, 6},
	} {
		p := predictor(t, c.kind, c.log1p)
		for _, v := range c.values {
			p = p.Add(v)
		}
		if got := p.Predict(); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("%s of %v: %v, want %v", c.kind, c.values, got, c.want)
		}
	}

	for _, log1p := range []bool{false, true} {
		p := predictor(t, "arima", log1p)
		for i := range 100 {
			p = p.Add(float64(10 + i))
		}
		if got := p.Predict(); math.Abs(got-110) > 1 {
			t.Errorf("log1p %v: arima of 10, 11 … 109 predicts %v", log1p, got)
		}
	}
}

// Zeros at the beginning are left out, again after a reset. An idle window records 0 requests and the last lengths.
func TestIdleWindows(t *testing.T) {
	c := Defaults()
	c.Predictor = "constant"
	s, err := c.NewSeries()
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range [][3]float64{{0, 0, 0}, {0, 0, 0}, {10, 512, 128}, {0, 0, 0}, {0, 0, 0}} {
		s = s.Window(w[0], w[1], w[2])
	}
	if s.Requests.Len() != 3 || s.ISL.Len() != 3 || s.OSL.Len() != 3 {
		t.Errorf("%d, %d and %d values, want 3 of each", s.Requests.Len(), s.ISL.Len(), s.OSL.Len())
	}
	got := c.Traffic(s)
	if got.Requests != 0 || got.ISL != 512 || got.OSL != 128 || got.Interval != c.Interval {
		t.Errorf("%+v", got)
	}

	s = s.Reset()
	if s = s.Window(0, 0, 0); s.Requests.Len() != 3 {
		t.Errorf("%d values after a zero that follows a reset", s.Requests.Len())
	}
	if s = s.Window(4, 100, 10); s.Requests.Len() != 4 || c.Traffic(s).ISL != 100 {
		t.Errorf("%+v", s)
	}
}
