package reactive

import (
	"math"
	"strings"
	"testing"
	"time"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// busy returns n ready workers with a share of the cache in use.
func busy(n int, usage float64) []Worker {
	out := make([]Worker, n)
	for i := range out {
		out[i] = Worker{Ready: true, Known: true, KVUsage: usage}
	}
	return out
}

func TestRecommendation(t *testing.T) {
	for _, c := range []struct {
		what    string
		metric  string
		now     int
		workers []Worker
		want    int
	}{
		{"twice the target", KVUsage, 3, busy(3, 1.0), 6},
		{"within tolerance", KVUsage, 3, busy(3, 0.549), 3},
		{"beyond it", KVUsage, 3, busy(3, 0.551), 4},
		{"half of it", KVUsage, 4, busy(4, 0.25), 2},
		{"none has reported", KVUsage, 3, make([]Worker, 3), 3},
		{"waiting", Waiting, 1, []Worker{{Ready: true, Known: true, Waiting: 5}}, 3},
		{"running", Running, 2, []Worker{{Ready: true, Known: true, Running: 64}, {Ready: true, Known: true, Running: 32}}, 3},
		{"one that starts counts as idle", KVUsage, 3, append(busy(2, 1.0), Worker{}), 4},
		{"enough start already", KVUsage, 4, append(busy(2, 1.0), Worker{}, Worker{}), 4},
		{"a silent one counts as on target", KVUsage, 4, append(busy(3, 0.1), Worker{Ready: true}), 2},
		{"not a number", KVUsage, 2, append(busy(1, 0.5), Worker{Ready: true, Known: true, KVUsage: math.NaN()}), 2},
	} {
		config := Defaults(c.metric)
		config.Target = map[string]float64{KVUsage: 0.5, Waiting: 2, Running: 32}[c.metric]
		if got, reason := config.recommend(c.now, c.workers); got != c.want {
			t.Errorf("%s: %d (%s), want %d", c.what, got, reason, c.want)
		}
	}
}

// Workers are removed when no recommendation of the window asks for them any more.
func TestRemovalsWait(t *testing.T) {
	c := Defaults(KVUsage)
	c.Target = 0.5
	var s State
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	d, s := c.Next(s, at(0), 4, busy(4, 0.5))
	if d.Replicas != 4 {
		t.Errorf("%+v", d)
	}
	d, s = c.Next(s, at(15), 4, busy(4, 0.25))
	if d.Replicas != 4 || !strings.Contains(d.Reason, "4 were recommended in the last 5m0s") {
		t.Errorf("%+v, want 4 for the recommendation before", d)
	}
	d, s = c.Next(s, at(150), 4, busy(4, 0.375))
	if d.Replicas != 4 {
		t.Errorf("%+v", d)
	}
	d, s = c.Next(s, at(300), 4, busy(4, 0.25))
	if d.Replicas != 3 {
		t.Errorf("%+v, want 3, the highest of the window", d)
	}
	if d, _ = c.Next(s, at(451), 3, busy(3, 1.0/3)); d.Replicas != 2 {
		t.Errorf("%+v, want 2", d)
	}
}

// Four workers, or as many as there were, may be added in 15 s.
func TestAdditionsAreBounded(t *testing.T) {
	for _, c := range []struct{ now, first, second, later int }{{1, 5, 5, 10}, {10, 20, 20, 40}} {
		config := Defaults(KVUsage)
		config.Target = 0.01
		d, s := config.Next(State{}, start, c.now, busy(c.now, 1))
		if d.Replicas != c.first {
			t.Errorf("%d: %+v, want %d", c.now, d, c.first)
		}
		again, s := config.Next(s, start.Add(10*time.Second), d.Replicas, busy(d.Replicas, 1))
		if again.Replicas != c.second {
			t.Errorf("%d: %+v within the period, want %d", c.now, again, c.second)
		}
		if later, _ := config.Next(s, start.Add(15*time.Second), again.Replicas, busy(again.Replicas, 1)); later.Replicas != c.later {
			t.Errorf("%d: %+v in the next period, want %d", c.now, later, c.later)
		}
	}
}

func TestBoundsAndStates(t *testing.T) {
	c := Defaults(KVUsage)
	c.Min, c.Max = 2, 5
	c.DownWindow = 0
	if d, _ := c.Next(State{}, start, 4, busy(4, 0)); d.Replicas != 2 {
		t.Errorf("%+v, want the least", d)
	}
	if d, _ := c.Next(State{}, start, 4, busy(4, 100)); d.Replicas != 5 {
		t.Errorf("%+v, want the most", d)
	}
	if d, _ := c.Next(State{}, start, 0, nil); d.Replicas != 0 {
		t.Errorf("%+v without replicas", d)
	}

	// A state does not change, and does not grow without bound.
	c = Defaults(KVUsage)
	c.Target = 0.5
	_, s := c.Next(State{}, start, 4, busy(4, 1))
	c.Next(s, start.Add(time.Second), 8, busy(8, 1))
	if len(s.recommended) != 1 || s.recommended[0].n != 8 {
		t.Errorf("the state before became %v", s)
	}
	for i := range 2000 {
		_, s = c.Next(s, start.Add(time.Duration(i)*time.Millisecond), 3000-i, busy(3000-i, 0.4))
	}
	if len(s.recommended) > mostEntries || len(s.added) > mostEntries {
		t.Errorf("%d and %d entries", len(s.recommended), len(s.added))
	}
}

func TestConfigIsChecked(t *testing.T) {
	for _, metric := range []string{KVUsage, Waiting, Running} {
		good := Defaults(metric)
		if err := good.Validate(); err != nil {
			t.Error(err)
		}
	}
	bad := Config{Metric: "cpu", Max: -1, Tolerance: 2, DownWindow: -1, UpPeriod: -1, UpWorkers: -1}
	err := bad.Validate()
	for _, want := range []string{`metric is "cpu"`, "target is 0", "min is 0", "max is -1", "tolerance is 2", "down window", "up period", "up workers"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
