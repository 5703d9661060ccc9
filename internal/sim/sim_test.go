package sim

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/perfmodel"
	"github.com/stator-project/stator/internal/route/cost"
	"github.com/stator-project/stator/internal/route/queue"
	"github.com/stator-project/stator/internal/route/serving"
	"github.com/stator-project/stator/internal/sim/engine"
	"github.com/stator-project/stator/internal/trace"
	"github.com/stator-project/stator/test/lab/tracefiles"
)

// sessions returns conversations: each turn has the prompt so far and two blocks more.
func sessions(n, turns int, rng *rand.Rand) []trace.Arrival {
	var out []trace.Arrival
	for turn := range turns {
		for s := range n {
			ids := make([]uint64, 0, 4+2*turn)
			for b := range 4 + 2*turn {
				ids = append(ids, uint64(s)<<16|uint64(b))
			}
			at := time.Duration(turn)*4*time.Second + time.Duration(rng.IntN(4000))*time.Millisecond
			out = append(out, trace.Arrival{At: at, Prompt: trace.Blocks{IDs: ids, Size: 64, Length: 64 * len(ids)}, Output: 1 + rng.IntN(40)})
		}
	}
	slices.SortStableFunc(out, func(a, b trace.Arrival) int { return int(a.At - b.At) })
	return out
}

func mustRun(t testing.TB, cfg Config, list []trace.Arrival) *Result {
	t.Helper()
	r, err := Run(cfg, trace.List(list))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// often restarts workers 0 to 3 in turn, one after each span.
func often(every, after time.Duration) (list []Restart) {
	for i := range 20 {
		list = append(list, Restart{Worker: i % 4, At: time.Duration(i) * every, After: after})
	}
	return list
}

// TestRunsRepeatThemselves runs many configurations twice: the same seed gives the same bytes, and every
// request completes or fails.
func TestRunsRepeatThemselves(t *testing.T) {
	list := sessions(25, 6, rand.New(rand.NewPCG(1, 1)))
	for name, cfg := range map[string]Config{
		"plain":          {},
		"round-robin":    {Policy: "round-robin"},
		"random":         {Policy: "random"},
		"late":           {EventLag: time.Second, SignalLag: 100 * time.Millisecond, Replicas: 3, Temperature: 0.5},
		"no events":      {NoEvents: true},
		"first tokens":   {FirstTokens: true},
		"waiting":        {Busy: serving.Busy{PrefillTokens: 300}, Queue: &queue.Config{}, MaxWait: 30 * time.Second, Replicas: 2},
		"separate roles": {Workers: 2, Prefill: 2, DecodePolicy: "least-loaded", SignalLag: 5 * time.Millisecond},
		"closed loop":    {Concurrency: 8},
		"failing":        {Restarts: often(time.Second, 200*time.Millisecond), EventLag: 50 * time.Millisecond, Replicas: 2},
		"slow":           {Slow: map[int]float64{2: 3}},
	} {
		cfg.Seed, cfg.Engine = 7, engine.Config{Blocks: 400, BlockSize: 16}
		first, err := json.Marshal(mustRun(t, cfg, list))
		if err != nil {
			t.Fatal(err)
		}
		r := mustRun(t, cfg, list)
		again, _ := json.Marshal(r)
		if string(first) != string(again) {
			t.Errorf("%s:\n%s, then\n%s", name, first, again)
		}
		if r.Completed+r.Errors != len(list) || r.Requests != len(list) || (r.Errors > 0) != (name == "failing") {
			t.Errorf("%s: %d requests, %d completed, %d errors", name, r.Requests, r.Completed, r.Errors)
		}
		if r.TTFT.Mean <= 0 || r.ITL.Mean <= 0 || r.E2E.P99 < r.TTFT.P99 || r.PrefixReuse < 0 || r.PrefixReuse > 1 {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

// A router with events of the caches reuses more than round robin, and having them late
// costs little where predictions bridge the time.
func TestKnowingCachesPays(t *testing.T) {
	list := sessions(60, 8, rand.New(rand.NewPCG(2, 2)))
	cfg := Config{Engine: engine.Config{Blocks: 1200, BlockSize: 16}}
	reuse := func(change func(*Config)) float64 {
		c := cfg
		change(&c)
		return mustRun(t, c, list).PrefixReuse
	}
	turns := reuse(func(c *Config) { c.Policy = "round-robin" })
	kv := reuse(func(*Config) {})
	late := reuse(func(c *Config) { c.EventLag = time.Second })
	if kv < 2*turns || late < 0.9*kv {
		t.Errorf("reuse %.3f in turns, %.3f by caches, %.3f a second late", turns, kv, late)
	}
}

// Routers with signals of first tokens do hardly better than replicas that infer from events which
// prompts are computed, or from nothing but the estimated times of prompts.
func TestFirstTokensAreGathered(t *testing.T) {
	list := sessions(60, 8, rand.New(rand.NewPCG(2, 2)))
	told := mustRun(t, Config{FirstTokens: true}, list).TTFT.Mean
	byEvents := mustRun(t, Config{}, list).TTFT.Mean
	blindTold := mustRun(t, Config{NoEvents: true, FirstTokens: true}, list).TTFT.Mean
	blind := mustRun(t, Config{NoEvents: true}, list).TTFT.Mean
	if byEvents > 1.1*told || blind > 1.1*blindTold {
		t.Errorf("mean TTFT %v by events, %v told; without events %v, %v told", byEvents, told, blind, blindTold)
	}
}

// TestPrefillAndDecodeWorkers: a prefill worker computes a prompt, which is transferred to a decode worker. No request
// is lost, and the workers of both roles share their work.
func TestPrefillAndDecodeWorkers(t *testing.T) {
	timing := perfmodel.Linear{PrefillBase: 10 * time.Millisecond, PrefillToken: time.Millisecond, DecodeBase: 5 * time.Millisecond}
	one := mustRun(t, Config{Workers: 1, Prefill: 1, PrefillAt: "remote", Transfer: Transfer{Base: 7 * time.Millisecond, TokenBytes: 10, NodeBandwidth: 1e6}, Engine: engine.Config{Timing: timing}},
		[]trace.Arrival{{Prompt: trace.Segments{{ID: 1, Length: 100}}, Output: 4}})
	// 10 + 100 ms of prefill, 7 + 1 ms on the way, and a step; then three more.
	if one.TTFT.Mean != 123 || one.E2E.Mean != 138 || one.ITL.Mean != 5 {
		t.Errorf("TTFT %v, e2e %v, ITL %v; want 123, 138 and 5 ms", one.TTFT.Mean, one.E2E.Mean, one.ITL.Mean)
	}
	list := sessions(60, 8, rand.New(rand.NewPCG(2, 2)))
	cfg := Config{Workers: 2, Prefill: 3, PrefillAt: "remote", Seed: 7, Engine: engine.Config{Blocks: 1200, BlockSize: 16}}
	r := mustRun(t, cfg, list)
	prefilled, decoded, tokens := 0, 0, 0
	for i, w := range r.PerWorker {
		if i < 2 {
			decoded += w.Requests
			tokens += w.OutputTokens
		} else {
			prefilled += w.Requests
		}
		if (w.Role == "decode") != (i < 2) || (w.Role == "prefill") != (i >= 2) || w.Requests == 0 || i < 2 && w.PromptTokens > 0 || i >= 2 && w.OutputTokens > 0 {
			t.Errorf("worker %d: %+v", i, w)
		}
	}
	if r.Completed != len(list) || prefilled != len(list) || decoded != len(list) || tokens == 0 || r.Imbalance() > 1.5 || r.PrefixReuse < 0.3 {
		t.Errorf("%d of %d completed, %d prefilled, %d decoded, imbalance %.2f, reuse %.3f", r.Completed, len(list), prefilled, decoded, r.Imbalance(), r.PrefixReuse)
	}
	cfg.Restarts = []Restart{{Worker: 4, At: time.Second, After: time.Second}, {Worker: 0, At: 3 * time.Second, After: time.Second}}
	if r := mustRun(t, cfg, list); r.Completed+r.Errors != len(list) || r.Errors == 0 {
		t.Errorf("with failures: %d completed and %d errors of %d", r.Completed, r.Errors, len(list))
	}
}

// A router learns the real speeds of engines: how long prompts take, from bookings and events, and
// how long steps do, from reports. Requests have the engines for themselves here, so that a line can
// be right.
func TestSpeedsAreLearned(t *testing.T) {
	var list []trace.Arrival
	rng := rand.New(rand.NewPCG(5, 5))
	for i := range 600 {
		n := 200 + rng.IntN(3000)
		list = append(list, trace.Arrival{At: time.Duration(i) * 1500 * time.Millisecond, Prompt: trace.Segments{{ID: uint64(i), Length: n}}, Output: 40})
	}
	truth := perfmodel.Linear{PrefillBase: 8 * time.Millisecond, PrefillToken: 50 * time.Microsecond, DecodeBase: 12 * time.Millisecond}
	r, err := newRun(Config{Workers: 2, Engine: engine.Config{Timing: truth, BlockSize: 16}}.withDefaults(), trace.List(list))
	if err != nil {
		t.Fatal(err)
	}
	if err := r.play(); err != nil {
		t.Fatal(err)
	}
	for kind, got := range r.replicas[0].router.Speeds() {
		prompt, step := got.Prefill.Prefill(2_000), got.Decode.Step(2_000)
		// Looking every 20 ms, prompts seem to take 10 ms more than they do.
		if prompt < 108*time.Millisecond || prompt > 122*time.Millisecond || math.Abs(step.Seconds()/0.012-1) > 0.08 {
			t.Errorf("%+v: %v for 2,000 tokens of prefill, want 108 ms; a step %v, want 12 ms: %+v", kind, prompt, step, got)
		}
		if got.Prefill.Observed < 400 || got.Decode.Observed < 200 {
			t.Errorf("learned from %d prompts and %d reports", got.Prefill.Observed, got.Decode.Observed)
		}
	}
	if len(r.replicas[0].router.Speeds()) != 1 {
		t.Error("there is one kind of engine")
	}
}

// Expected hits come true if news is immediate and nothing is evicted meanwhile.
func TestPromisesAreKept(t *testing.T) {
	r := mustRun(t, Config{Engine: engine.Config{Blocks: 1 << 14, BlockSize: 16}, PredictFor: -1}, sessions(20, 6, rand.New(rand.NewPCG(3, 3))))
	if math.Abs(r.Predicted-r.PrefixReuse) > 0.01 || r.PrefixReuse < 0.5 {
		t.Errorf("promised %.4f, reused %.4f", r.Predicted, r.PrefixReuse)
	}
}

func TestConfigIsValidated(t *testing.T) {
	_, err := Run(Config{Workers: -1, ArrivalSpeedup: -2, Replicas: 1000, Slow: map[int]float64{9: 0}, Restarts: []Restart{{Worker: 4}}}, trace.List(nil))
	for _, want := range []string{"-1 workers", "arrival speedup -2", "1000 replicas", "slow worker 9: there are", "factor 0", "restart of worker 4"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if _, err := Run(Config{}, trace.List([]trace.Arrival{{Prompt: trace.IDs(nil), Output: 1}})); err == nil || !strings.Contains(err.Error(), "needs one of each") {
		t.Errorf("%v", err)
	}
	if r, err := Run(Config{}, trace.List(nil)); err != nil || r.Requests != 0 || r.TTFT.Mean != 0 {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestAgenda: events come by time, events of one time in the order in which they were made, and passes begin after all others.
func TestAgenda(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 4))
	var a agenda
	var left []event // worker is the number of the event in order of creation
	now := time.Duration(0)
	for step := range 20_000 {
		if len(left) == 0 || rng.IntN(5) < 3 && step < 10_000 {
			e := event{at: now + time.Duration(rng.IntN(50)), worker: step}
			switch rng.IntN(4) {
			case 0:
				e.at, e.kind = now, passBegins
				a.begin(step, now)
			case 1:
				e.kind = passEnds
				e.life = a.endPass(step, e.at)
			default:
				e.kind = workerDies
				a.add(e)
			}
			left = append(left, e)
			continue
		}

		e := a.next()
		i := slices.IndexFunc(left, func(x event) bool { return x.at == e.at && x.kind == e.kind && x.worker == e.worker })
		if i < 0 || e.kind == passEnds && e.life != left[i].life {
			t.Fatalf("step %d: %+v is not one that was added", step, e)
		}
		left = slices.Delete(left, i, i+1)
		now = e.at
		for _, other := range left {
			begins, otherBegins := e.kind == passBegins, other.kind == passBegins
			isEarlier := other.at < e.at || other.at == e.at && (begins && !otherBegins || begins == otherBegins && other.worker < e.worker)
			if isEarlier {
				t.Fatalf("%+v came before %+v", e, other)
			}
		}
	}
}

func TestHistogram(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 5))
	var h histogram
	var values []float64
	for range 50_000 {
		v := math.Exp(rng.NormFloat64()*3 + 2)
		h.add(v)
		values = append(values, v)
	}
	h.add(0)
	got, want := h.summary(), summary(append(values, 0))
	for _, pair := range [][2]float64{{got.Mean, want.Mean}, {got.P50, want.P50}, {got.P90, want.P90}, {got.P99, want.P99}} {
		if math.Abs(pair[0]-pair[1]) > 0.015*pair[1] {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
}

// mooncake opens Mooncake's conversation trace. It skips the test if the trace is not at hand.
func mooncake(t testing.TB) *os.File { return public(t, tracefiles.Mooncake) }

// public opens a public trace. It skips the test if the trace is not at hand.
func public(t testing.TB, trace tracefiles.File) *os.File {
	for _, folder := range []string{"../../traces", "../../../shared/traces"} {
		f, err := os.Open(filepath.Join(folder, trace.Path))
		if err == nil {
			t.Cleanup(func() { _ = f.Close() })
			return f
		}
	}
	t.Skipf("%s is not at hand: `make traces` fetches it", trace.Path)
	return nil
}

// TestAgreesWithDynamo plays the first 1,000 rows of the Mooncake trace as Dynamo's own replay was
// seen to: vLLM's engine with 16,384 blocks of 64, 4 workers. make replay-golden compares all.
func TestAgreesWithDynamo(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes seconds")
	}
	const reuse, ttft, within = 0.1164, 495.2, 0.05

	cfg := Config{Policy: "kv", Cost: cost.Dynamo(), PredictFor: -1, Engine: engine.Config{BlockSize: 64}}
	r, err := Run(cfg, trace.Take(1000, trace.Mooncake(mooncake(t), 512)))
	if err != nil {
		t.Fatal(err)
	}
	if math.Abs(r.PrefixReuse/reuse-1) > within || math.Abs(r.TTFT.Mean/ttft-1) > within {
		t.Errorf("reuse %.4f, TTFT %.1f ms; Dynamo's replay has %.4f and %.1f", r.PrefixReuse, r.TTFT.Mean, reuse, ttft)
	}
}

// BenchmarkReplay asks how long the whole Mooncake trace takes: 12,031 requests, 8 workers, the kv
// policy. The bar is 10 s on one core.
//
//	GOMAXPROCS=1 go test ./internal/sim -run '^$' -bench Replay -benchtime 1x
func BenchmarkReplay(b *testing.B) {
	for b.Loop() {
		r, err := Run(Config{Workers: 8, Engine: engine.Config{BlockSize: 64}}, trace.Mooncake(mooncake(b), 512))
		if err != nil || r.Completed != 12031 {
			b.Fatal(r, err)
		}
	}
}

// Replicas that hear of each other spread a burst as one would; replicas that do not, pile up.
func TestReplicasHearOfEachOther(t *testing.T) {
	var burst []trace.Arrival
	for i := range 120 {
		at := time.Duration(i/24)*10*time.Second + time.Duration(i%24)*20*time.Millisecond
		burst = append(burst, trace.Arrival{At: at, Prompt: trace.Blocks{IDs: []uint64{uint64(i)}, Size: 4000, Length: 4000}, Output: 20})
	}
	ttft := func(replicas int, lag time.Duration) float64 {
		return mustRun(t, Config{Replicas: replicas, BookLag: lag, Seed: 3}, burst).TTFT.Mean
	}
	one, three, deaf := ttft(1, 0), ttft(3, 0), ttft(3, -1)
	if three > 1.1*one || deaf < three {
		t.Errorf("TTFT %.0f ms of one replica, %.0f of three, %.0f of three that are deaf", one, three, deaf)
	}
	t.Logf("TTFT %.0f ms of one replica, %.0f of three, %.0f of three that are deaf", one, three, deaf)
}

// Requests wait in the router while engines are busy, none is lost, and shortest first has the
// smaller mean, as it must.
func TestQueueIsPlayed(t *testing.T) {
	rng := rand.New(rand.NewPCG(6, 6))
	var list []trace.Arrival
	for i := range 300 {
		n := 200
		if rng.IntN(5) == 0 {
			n = 6000
		}
		list = append(list, trace.Arrival{At: time.Duration(i) * 40 * time.Millisecond, Prompt: trace.Segments{{ID: uint64(i), Length: n}}, Output: 2})
	}
	play := func(order queue.Order) *Result {
		return mustRun(t, Config{
			Workers: 1, Busy: serving.Busy{PrefillTokens: 1}, MaxWait: time.Hour, Queue: &queue.Config{Classes: []queue.Class{{Order: order}}},
			Engine: engine.Config{Timing: perfmodel.Linear{PrefillBase: time.Millisecond, PrefillToken: 50 * time.Microsecond, DecodeBase: time.Millisecond}},
		}, list)
	}
	fcfs, wspt := play(queue.FCFS), play(queue.WSPT)
	for _, r := range []*Result{fcfs, wspt} {
		if r.Completed != len(list) || r.Queued < 100 {
			t.Errorf("%d of %d completed, %d waited", r.Completed, len(list), r.Queued)
		}
	}
	if wspt.TTFT.Mean > 0.5*fcfs.TTFT.Mean {
		t.Errorf("mean TTFT %v ms by wspt, %v by fcfs", wspt.TTFT.Mean, fcfs.TTFT.Mean)
	}
	short := mustRun(t, Config{
		Workers: 1, Busy: serving.Busy{PrefillTokens: 1}, MaxWait: 100 * time.Millisecond, Queue: &queue.Config{Limit: queue.Limit{Requests: 5}},
		Engine: engine.Config{Timing: perfmodel.Linear{PrefillToken: 50 * time.Microsecond, DecodeBase: time.Millisecond}},
	}, list)
	if short.Completed+short.Errors != len(list) || short.Errors == 0 || short.TTFT.P99 > 500 {
		t.Errorf("who waits too long is refused: %d completed, %d errors, TTFT p99 %v ms", short.Completed, short.Errors, short.TTFT.P99)
	}
}

// TestQueueHasADefaultWait: a queue without a longest wait has the documented one of 30 s.
func TestQueueHasADefaultWait(t *testing.T) {
	slow := perfmodel.Linear{PrefillToken: 100 * time.Millisecond, DecodeBase: time.Millisecond}
	cfg := Config{Workers: 1, Busy: serving.Busy{PrefillTokens: 1}, Queue: &queue.Config{}, Engine: engine.Config{Timing: slow}}
	// Each prompt takes 10 s, so the third one waits for 20 s and the fifth one would wait for 40 s.
	r := mustRun(t, cfg, distinct(0, 0, 0, 0, 0))
	if r.Completed < 3 || r.Completed > 4 || r.Completed+r.Errors != 5 {
		t.Errorf("%d completed, %d errors", r.Completed, r.Errors)
	}
}
