package dynamo

import "testing"

// Dynamo's unit tests of the budget.
func TestBudgetGolden(t *testing.T) {
	for _, c := range []struct {
		p, d, pGPU, dGPU, least, most, pMin, dMin int
		want                                      Replicas
	}{
		{10, 10, 1, 1, -1, 5, 2, 1, Replicas{2, 3}},
		{3, 1, 1, 1, 4, 4, 1, 1, Replicas{3, 1}},
		{1, 1, 1, 2, 4, 10, 1, 1, Replicas{1, 1}},
		{3, 5, 0, 1, 4, 8, 1, 1, Replicas{3, 5}},
		{5, 5, 1, 1, -1, 1, 1, 1, Replicas{0, 0}},
		{1, 2, 2, 2, 3, 3, 1, 1, Replicas{0, 0}},
		// Growth: in proportion, from nothing, and not over the upper bound.
		{1, 3, 1, 1, 8, -1, 1, 1, Replicas{2, 6}},
		{0, 0, 1, 1, 5, -1, 1, 1, Replicas{3, 2}},
		{0, 0, 4, 4, 9, 11, 1, 1, Replicas{0, 0}},
	} {
		got := Budget{c.least, c.most}.Pair(Replicas{c.p, c.d}, Replicas{c.pGPU, c.dGPU}, Replicas{c.pMin, c.dMin})
		if got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}

	for _, c := range [][6]int{{10, 1, -1, 4, 1, 4}, {5, 1, -1, 2, 3, 0}, {2, 4, 3, 3, 1, 0}, {1, 2, 6, -1, 1, 3}, {3, 2, 6, 6, 1, 3}} {
		if got := (Budget{c[2], c[3]}).Single(c[0], c[1], c[4]); got != c[5] {
			t.Errorf("%v: %d", c, got)
		}
	}
}

func TestPower(t *testing.T) {
	watts, least := Replicas{700, 700}, Replicas{1, 1}
	for _, c := range []struct {
		what      string
		want, now Replicas
		bound     int
		got       Replicas
		reason    string
	}{
		{"it fits", Replicas{2, 3}, Replicas{1, 1}, 3500, Replicas{2, 3}, ""},
		{"as near as fits", Replicas{4, 4}, Replicas{2, 2}, 4200, Replicas{3, 3}, PowerClamped},
		{"no role shrinks for the other", Replicas{1, 8}, Replicas{1, 2}, 2800, Replicas{1, 3}, PowerClamped},
		{"the growth waits for the shrinking", Replicas{4, 1}, Replicas{1, 4}, 3500, Replicas{1, 1}, PowerStaged},
		{"too much already", Replicas{5, 5}, Replicas{4, 4}, 3500, Replicas{2, 3}, PowerClamped},
		{"the clamp makes an exchange", Replicas{5, 5}, Replicas{4, 1}, 3500, Replicas{4, 1}, PowerClamped},
		{"the least is too much", Replicas{3, 3}, Replicas{1, 2}, 1000, Replicas{1, 2}, PowerInfeasible},
	} {
		got, reason := Power(c.want, c.now, watts, least, c.bound)
		if got != c.got || reason != c.reason {
			t.Errorf("%s: %v %q, want %v %q", c.what, got, reason, c.got, c.reason)
		}
	}
}
