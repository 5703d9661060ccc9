package sim

import (
	"math"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/perfmodel"
	"github.com/stator-project/stator/internal/sim/engine"
	"github.com/stator-project/stator/internal/trace"
)

// equalRequests are the requests of a closed loop, as load generators send them: prompts of 1,000 tokens, of which a share is one of
// some prefixes, and answers of 200.
func equalRequests(t *testing.T, n int, share float64, prefixes int, seed uint64) trace.Source {
	t.Helper()
	next, err := trace.Generated{
		Requests: n, Rate: 1e5, Arrivals: "constant", Input: 1000, Output: 200, PrefixShare: share, Prefixes: prefixes, Seed: seed,
	}.Source()
	if err != nil {
		t.Fatal(err)
	}
	return next
}

// loop is a closed loop of as many requests as the slots of eight engines.
func loop(seed uint64) Config {
	return Config{
		Workers: 8, Concurrency: 512, Seed: seed,
		Engine: engine.Config{BlockSize: 64, MaxNumSeqs: 64, Timing: perfmodel.Polynomial{}},
	}
}

// TestStabilityOfEqualWorkers plays a closed loop at the engines' slots with noise and stalls. Equal engines must get equal work, with
// one router and with three, with late events and without any.
func TestStabilityOfEqualWorkers(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes seconds")
	}
	for name, change := range map[string]func(*Config){
		"one router":    func(*Config) {},
		"three routers": func(c *Config) { c.Replicas = 3 },
		"late events":   func(c *Config) { c.EventLag = time.Second },
		"no events":     func(c *Config) { c.NoEvents = true },
		"no reports":    func(c *Config) { c.ReportEvery = -1 },
	} {
		cfg := loop(1)
		cfg.Noise = Noise{Sigma: 0.3, Stalls: true}
		change(&cfg)
		r, err := Run(cfg, equalRequests(t, 6000, 0.2, 1, 1))
		if err != nil {
			t.Fatal(err)
		}
		if got := r.Imbalance(); got > 1.12 || r.Errors > 0 {
			t.Errorf("%s: the busiest engine has %.3f times the mean of requests; %d errors", name, got, r.Errors)
		}
	}
}

// TestStabilityFromTheFirstRound has as many requests at once as the fleet has slots. The first round comes before any engine has reported
// its slots or computed a prompt, and no request of it may wait for a whole answer at a rank that has got more requests than slots.
func TestStabilityFromTheFirstRound(t *testing.T) {
	cfg := loop(1)
	cfg.Workers, cfg.Concurrency = 4, 1024
	cfg.Engine.MaxNumSeqs = 0 // the default
	r, err := Run(cfg, equalRequests(t, 3072, 0.9, 200, 1))
	if err != nil {
		t.Fatal(err)
	}
	if got, answer := r.TTFT.P99, r.E2E.Mean-r.TTFT.Mean; got > answer/2 || r.Errors > 0 {
		t.Errorf("requests wait %.0f ms for their first token (99th percentile), and an answer takes %.0f ms; %d errors", got, answer, r.Errors)
	}
}

// shares plays a run until the last of some moments. It returns how many requests each engine has got by then: first none, then by each
// moment.
func shares(t *testing.T, cfg Config, next trace.Source, spans []time.Duration) [][]int {
	t.Helper()
	r, err := newRun(cfg.withDefaults(), next)
	if err != nil {
		t.Fatal(err)
	}
	counts := make([][]int, len(spans)+1)
	counts[0] = make([]int, cfg.Workers)
	at := 0
	r.cfg.Stopped = func() bool {
		for at < len(spans) && r.now >= spans[at] {
			at++
			counts[at] = make([]int, cfg.Workers)
			for i := range r.workers {
				counts[at][i] = r.tally.workers[i].Requests
			}
		}
		return at == len(spans)
	}
	if err := r.play(); err != nil {
		t.Fatal(err)
	}
	if at < len(spans) {
		t.Fatalf("the run ends at %v", r.now)
	}
	return counts
}

// TestLongPromptsAreLearned plays prompts that take most of the time between two reports, at three routers. What each of them learns about the
// time of such a prompt must be near its time on an idle engine, though a router sees the ends of a third of them.
func TestLongPromptsAreLearned(t *testing.T) {
	prompts := func(n int, rate float64) trace.Source {
		next, err := trace.Generated{Requests: n, Rate: rate, Arrivals: "constant", Input: 30_000, Output: 300, Spread: 0.5, Seed: 1}.Source()
		if err != nil {
			t.Fatal(err)
		}
		return next
	}
	idle, err := Run(Config{Workers: 1, Engine: loop(1).Engine}, prompts(20, 0.1))
	if err != nil {
		t.Fatal(err)
	}

	cfg := loop(1)
	cfg.Concurrency, cfg.Replicas = 64, 3
	r, err := newRun(cfg.withDefaults(), prompts(600, 1e5))
	if err != nil {
		t.Fatal(err)
	}
	if err := r.play(); err != nil {
		t.Fatal(err)
	}
	for i, p := range r.replicas {
		for _, speed := range p.router.Speeds() {
			got := float64(speed.Prefill.Prefill(30_000).Milliseconds())
			if ratio := got / idle.TTFT.Mean; ratio < 0.6 || ratio > 1.6 {
				t.Errorf("router %d expects a prompt to take %.0f ms; it takes %.0f ms: %v", i, got, idle.TTFT.Mean, speed.Prefill)
			}
		}
	}
}

// TestStabilityOfASlowWorker makes one of eight engines 1.5 times as slow. Once that is known, its share of the requests must be
// within 10 % of its share of the fleet's speed.
func TestStabilityOfASlowWorker(t *testing.T) {
	const slowest, factor = 3, 1.5
	cfg := loop(1)
	cfg.Slow = map[int]float64{slowest: factor}
	counts := shares(t, cfg, equalRequests(t, 40000, 0.2, 1, 1), []time.Duration{20 * time.Second, 80 * time.Second})
	slow, all := 0, 0
	for i, n := range counts[2] {
		n -= counts[1][i]
		all += n
		if i == slowest {
			slow = n
		}
	}
	got, want := float64(slow)/float64(all), 1/factor/(7+1/factor)
	if math.Abs(got/want-1) > 0.10 {
		t.Errorf("the slow engine gets %.4f of the requests, want %.4f", got, want)
	}
}

// TestStabilityAfterASlowSpell makes one engine three times as slow for 20 s. From 10 s after its recovery on it must get its even
// share again, and the others must not oscillate.
func TestStabilityAfterASlowSpell(t *testing.T) {
	const slow = 3
	cfg := loop(1)
	cfg.Noise.SlowSpells = []SlowSpell{{Worker: slow, Factor: 3, At: 20 * time.Second, Span: 20 * time.Second}}
	counts := shares(t, cfg, equalRequests(t, 60000, 0.2, 1, 1), []time.Duration{
		20 * time.Second, 30 * time.Second, 40 * time.Second, 50 * time.Second, 70 * time.Second, 90 * time.Second,
	})
	share := func(span, worker int) float64 {
		sum := 0
		for i := range counts[span] {
			sum += counts[span][i] - counts[span-1][i]
		}
		return float64(counts[span][worker]-counts[span-1][worker]) / float64(sum) * float64(cfg.Workers)
	}
	if got := share(3, slow); got > 0.6 {
		t.Errorf("ten seconds into the spell the slow engine gets %.2f of an even share", got)
	}
	for span := 5; span <= 6; span++ {
		for worker := range cfg.Workers {
			if got := share(span, worker); got < 0.9 || got > 1.1 {
				t.Errorf("span %d: engine %d gets %.3f of an even share", span, worker, got)
			}
		}
	}
}
