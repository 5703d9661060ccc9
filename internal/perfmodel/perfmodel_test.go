package perfmodel_test

import (
	"math"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/perfmodel"
)

// The figures are the polynomials, worked by hand.
func TestPolynomial(t *testing.T) {
	p := perfmodel.Polynomial{}
	tests := []struct {
		name string
		got  time.Duration
		want float64 // ms
	}{
		{"nothing to prefill", p.Prefill(perfmodel.Prefill{}), 0},
		{"all of it cached", p.Prefill(perfmodel.Prefill{Requests: 1, Input: 64, Prefix: 64}), 0},
		{"1,000 tokens", p.Prefill(perfmodel.Prefill{Requests: 1, Input: 1000}), 0.4209989 + 15.18344 + 16.50142},
		{"1,000 of 3,000", p.Prefill(perfmodel.Prefill{Requests: 1, Input: 3000, Prefix: 2000}), 0.4209989 + 15.18344 + 16.50142},
		{"means are whole numbers: 2 of (1001/2)", p.Prefill(perfmodel.Prefill{Requests: 2, Input: 1001}), 0.4209989 + 15.18344 + 16.50142},
		{"nothing to decode", p.Decode(perfmodel.Decode{Capacity: 100}), 0},
		{"an empty cache", p.Decode(perfmodel.Decode{Requests: 1, Capacity: 100}), 5.74},
		{"half full", p.Decode(perfmodel.Decode{Requests: 1, Context: 50, Capacity: 100}), -25.74/4 + 54.01/2 + 5.74},
		{"full", p.Decode(perfmodel.Decode{Requests: 1, Context: 500, Capacity: 100}), 34.01},
		{"twice as fast", perfmodel.Polynomial{Speedup: 2}.Decode(perfmodel.Decode{Requests: 1, Capacity: 1}), 5.74 / 2},
	}
	for _, tt := range tests {
		if got := float64(tt.got) / float64(time.Millisecond); math.Abs(got-tt.want) > 1e-5 {
			t.Errorf("%s: %v ms, want %v", tt.name, got, tt.want)
		}
	}
	if err := (perfmodel.Polynomial{Speedup: -1}).Validate(); err == nil {
		t.Error("a negative speedup is valid")
	}
}

func TestFixedAndLinear(t *testing.T) {
	f := perfmodel.Fixed{PrefillTime: 10, DecodeTime: 3}
	l := perfmodel.Linear{PrefillBase: 10, PrefillToken: 2, DecodeBase: 3, DecodeRequest: 1}
	for _, m := range []perfmodel.Timing{f, l, perfmodel.Polynomial{}} {
		if d := m.Prefill(perfmodel.Prefill{}) + m.Decode(perfmodel.Decode{}); d != 0 {
			t.Errorf("%T: an empty pass takes %v", m, d)
		}
	}
	if d := f.Prefill(perfmodel.Prefill{Requests: 2, Input: 9}) + f.Decode(perfmodel.Decode{Requests: 1}); d != 13 {
		t.Errorf("fixed: %d", d)
	}
	if d := l.Prefill(perfmodel.Prefill{Requests: 2, Input: 9, Prefix: 4}) + l.Decode(perfmodel.Decode{Requests: 2}); d != 25 {
		t.Errorf("linear: %d", d)
	}
}
