// Package reactive computes replicas as the Horizontal Pod Autoscaler of Kubernetes does.
//
// It is the algorithm that most fleets start with, and what others are compared with. It forecasts nothing:
//
//	replicas = ceil(workers × metric ÷ target)
//
// with a tolerance, a stabilization window for removals, and a bound on the workers added in a period. The rules and defaults come from
// https://kubernetes.io/docs/concepts/workloads/autoscaling/horizontal-pod-autoscale/ (algorithm details, and scaling behavior of
// autoscaling/v2). All functions are pure.
package reactive

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// The metrics. Each is a mean over workers.
const (
	KVUsage = "kv-usage" // share of the KV cache in use, 0 to 1
	Waiting = "waiting"  // requests in the queue
	Running = "running"  // requests in the batch
)

// Config is the configuration of an autoscaler. Create it with [Defaults].
type Config struct {
	// Metric is kv-usage, waiting or running, and Target its wanted value in the mean of all workers.
	Metric string
	Target float64
	// Min and Max bound the replicas. Max 0 is no bound.
	Min, Max int
	// Tolerance is the distance that the metric may have from the target without a change, as a share of
	// the target.
	Tolerance float64
	// DownWindow is the time of which the highest recommendation counts before workers are removed.
	DownWindow time.Duration
	// UpPeriod is the time in which UpWorkers, or UpShare of the workers at its beginning, may be added: the larger one counts.
	UpPeriod  time.Duration
	UpWorkers int
	UpShare   float64
}

// Defaults returns the defaults of Kubernetes for a metric: a tolerance of 0.1, five minutes before a removal, and four workers or 100 %
// more in 15 s. The target is 0.7 of the KV cache, 2 waiting or 32 running requests.
func Defaults(metric string) Config {
	return Config{
		Metric: metric, Target: map[string]float64{KVUsage: 0.7, Waiting: 2, Running: 32}[metric], Min: 1, Tolerance: 0.1,
		DownWindow: 300 * time.Second, UpPeriod: 15 * time.Second, UpWorkers: 4, UpShare: 1,
	}
}

// Validate reports everything that is wrong with the configuration.
func (c *Config) Validate() error {
	var errs []error
	add := func(wrong bool, format string, args ...any) {
		if wrong {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	add(c.Metric != KVUsage && c.Metric != Waiting && c.Metric != Running,
		"metric is %q: it must be %s, %s or %s", c.Metric, KVUsage, Waiting, Running)
	add(!(c.Target > 0 && c.Target < 1e9), "target is %v: it must be positive", c.Target)
	add(c.Min < 1, "min is %d: it must be at least 1", c.Min)
	add(c.Max != 0 && c.Max < c.Min, "max is %d: it must be 0 or at least min, %d", c.Max, c.Min)
	add(!(c.Tolerance >= 0 && c.Tolerance < 1), "tolerance is %v: it must be at least 0, and less than 1", c.Tolerance)
	add(c.DownWindow < 0 || c.DownWindow > time.Hour, "down window is %v: it must be 0 to 1 h", c.DownWindow)
	add(c.UpPeriod < 0 || c.UpPeriod > time.Hour, "up period is %v: it must be 0 to 1 h", c.UpPeriod)
	add(c.UpWorkers < 0 || !(c.UpShare >= 0 && c.UpShare < 1e6), "up workers and up share must not be negative")
	return errors.Join(errs...)
}

// Worker is the report of one worker.
type Worker struct {
	// Ready reports whether it takes requests. Workers that start have no metric yet; draining workers do not belong here.
	Ready bool
	// Known reports whether it has reported its load.
	Known            bool
	KVUsage          float64
	Waiting, Running int
}

// Decision is the wanted number of workers, and the reason.
type Decision struct {
	Replicas int
	Reason   string
}

// State is the memory of an autoscaler. It is a value: Next does not change its argument. Its size is bounded.
type State struct {
	recommended []entry // of the window for removals; each is less than the one before
	added       []entry // workers of the period for additions
}

// entry is a number of workers at a time.
type entry struct {
	at time.Time
	n  int
}

// mostEntries bounds both lists of a state.
const mostEntries = 256

// Next returns the decision at a time for now replicas, which workers report about, and the next state.
func (c *Config) Next(s State, at time.Time, now int, workers []Worker) (Decision, State) {
	s.recommended = within(s.recommended, at, c.DownWindow)
	s.added = within(s.added, at, c.UpPeriod)
	if now == 0 {
		return Decision{0, "there are no replicas: autoscaling is off"}, s
	}

	wish, reason := c.recommend(now, workers)
	wish = c.bounded(wish)
	s.recommended = remember(s.recommended, entry{at, wish})
	d := Decision{wish, reason}
	if highest := s.recommended[0].n; wish < now && highest > wish {
		d.Replicas = min(highest, now)
		d.Reason = fmt.Sprintf("%s; %d were recommended in the last %v", reason, highest, c.DownWindow)
	}

	if limit := c.mostNow(s, now); d.Replicas > limit {
		d.Replicas = limit
		d.Reason = fmt.Sprintf("%s; at most %d in %v", reason, limit, c.UpPeriod)
	}
	d.Replicas = c.bounded(d.Replicas)
	if d.Replicas > now {
		s.added = appended(s.added, entry{at, d.Replicas - now})
	}
	return d, s
}

// recommend returns the replicas that the metric alone asks for.
func (c *Config) recommend(now int, workers []Worker) (replicas int, reason string) {
	sum := 0.0
	var known, missing, starting int
	for _, w := range workers {
		switch v := c.value(w); {
		case !w.Ready:
			starting++
		case !w.Known || !(v >= 0 && v < 1e12):
			missing++
		default:
			known++
			sum += v
		}
	}
	if known == 0 {
		return now, "no worker has reported " + c.Metric
	}

	// Workers without a metric hold back both directions: they count as idle before an addition, and as on target before a removal.
	ratio, counted := sum/float64(known)/c.Target, known
	cautious := ratio
	switch {
	case ratio > 1 && missing+starting > 0:
		counted += missing + starting
		cautious = sum / float64(counted) / c.Target
	case ratio < 1 && missing > 0:
		counted += missing
		cautious = (sum/c.Target + float64(missing)) / float64(counted)
	}

	reason = fmt.Sprintf("%s of %d workers is %.3g, target %.3g", c.Metric, known, sum/float64(known), c.Target)
	if math.Abs(cautious-1) <= c.Tolerance || (cautious > 1) != (ratio > 1) {
		return now, reason + ": within tolerance"
	}
	replicas = int(math.Ceil(min(cautious*float64(counted), math.MaxInt32) - rounding))
	if (replicas < now) != (cautious < 1) {
		return now, reason + ": other replicas are on their way"
	}
	return replicas, reason
}

// rounding is the most by which a quotient may exceed a whole number without counting for one more.
const rounding = 1e-9

// value returns the configured metric of a worker.
func (c *Config) value(w Worker) float64 {
	switch c.Metric {
	case Waiting:
		return float64(w.Waiting)
	case Running:
		return float64(w.Running)
	}
	return w.KVUsage
}

// bounded moves replicas into the configured range.
func (c *Config) bounded(n int) int {
	if c.Max > 0 {
		n = min(n, c.Max)
	}
	return max(n, c.Min)
}

// mostNow returns how many replicas additions may reach: as many as there were at the beginning of the period, and the allowance.
func (c *Config) mostNow(s State, now int) int {
	begin := now
	for _, e := range s.added {
		begin -= e.n
	}
	begin = max(begin, 0)
	return max(now, begin+c.UpWorkers, int(math.Ceil(min(float64(begin)*(1+c.UpShare), math.MaxInt32))))
}

// within returns the entries that are less than a time old.
func within(list []entry, at time.Time, window time.Duration) []entry {
	var out []entry
	for _, e := range list {
		if age := at.Sub(e.at); age >= 0 && age < window {
			out = append(out, e)
		}
	}
	return out
}

// remember adds a recommendation and drops the ones it exceeds, which cannot be the highest any more. So the first is the highest.
func remember(list []entry, e entry) []entry {
	for len(list) > 0 && list[len(list)-1].n <= e.n {
		list = list[:len(list)-1]
	}
	return appended(list, e)
}

// appended returns a new list with one more entry. A list that is full merges the new entry into its last one, with the later time.
func appended(list []entry, e entry) []entry {
	out := make([]entry, 0, len(list)+1)
	out = append(out, list...)
	if len(out) < mostEntries {
		return append(out, e)
	}
	last := &out[len(out)-1]
	last.at, last.n = e.at, max(last.n, e.n)
	return out
}
