package scenario

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// drainCycles is how often TestScaleDownLosesNoRequest lowers the number of engines. Each time 13 engines end: eight aggregated ones, two
// prefill workers and three decode workers.
const (
	drainCycles  = 4
	drainsACycle = 13
)

// scaledTo is a configuration with that many engines of each launch.
func scaledTo(aggregated, prefill, decode int) string {
	return fmt.Sprintf(`apiVersion: stator.dev/v1alpha1
kind: Stator
planner: {connector: local, interval: 1s, drainTimeout: 50s}
models:
- name: sim
  path: "builtin:sim"
  launch: [{engine: sim, count: %d, min: 1, max: 9, args: {engineSpeedup: 4}}]
- name: split
  path: "builtin:sim"
  router: {prefill: remote}
  launch:
  - {engine: sim, role: prefill, count: %d, min: 1, max: 3, args: {engineSpeedup: 4}}
  - {engine: sim, role: decode, count: %d, min: 1, max: 4, args: {engineSpeedup: 4}}
`, aggregated, prefill, decode)
}

// TestScaleDownLosesNoRequest: while the configuration lowers and raises the number of engines, every request gets its complete answer,
// unary ones and streams, and every engine that ends has drained: none was stopped because its time was over.
func TestScaleDownLosesNoRequest(t *testing.T) {
	t.Parallel()
	path := t.TempDir() + "/stator.yaml"
	scale := func(aggregated, prefill, decode int) {
		t.Helper()
		if err := os.WriteFile(path+".new", []byte(scaledTo(aggregated, prefill, decode)), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	scale(9, 3, 4)
	g := up(t, "--config", path)
	g.awaitEngines(16)

	l := g.mixedLoad(4)
	began := time.Now()
	var draining time.Duration
	for cycle := range drainCycles {
		l.more(t, 40)
		down := time.Now()
		scale(1, 1, 1)
		g.awaitDrains((cycle + 1) * drainsACycle)
		g.awaitEngines(3)
		draining += time.Since(down)

		if cycle+1 < drainCycles {
			scale(9, 3, 4)
			g.awaitEngines(16)
		}
	}
	took := time.Since(began)
	l.more(t, 40)
	l.stop()

	t.Logf("%d engines ended in %s; from the change to the end of 13 engines %s in the mean; the drain of one took %.1f s in the mean; "+
		"%d requests had complete answers, %d had not", drainCycles*drainsACycle, took.Round(time.Second),
		(draining / drainCycles).Round(100*time.Millisecond),
		g.metric("stator_agent_drain_seconds_sum")/g.metric("stator_agent_drain_seconds_count"), l.ok.Load(), l.failed.Load())
	if l.failed.Load() > 0 {
		t.Errorf("%d requests were lost, the last one: %v", l.failed.Load(), l.lastError.Load())
	}
	for _, result := range []string{"deadline", "blind", "not_ready", "ended", "taken_back"} {
		if n := g.metric("stator_agent_drains_total", `result="`+result+`"`); n != 0 {
			t.Errorf("%g drains ended with %s", n, result)
		}
	}
	if n := g.prefills("transferred"); n == 0 {
		t.Error("no prompt was computed by a prefill worker")
	}
}

// awaitEngines waits until that many workers are there, and all of them are ready.
func (g *gateway) awaitEngines(n int) {
	g.t.Helper()
	eventually(g.t, fmt.Sprintf("%d engines are ready", n), func() error {
		fleet := g.fleet()
		for _, r := range fleet {
			if r.State != "ready" {
				return fmt.Errorf("%s is %s", r.Worker, r.State)
			}
		}
		if len(fleet) != n {
			return fmt.Errorf("there are %d", len(fleet))
		}
		return nil
	})
}

// awaitDrains waits until that many engines have ended because they were idle.
func (g *gateway) awaitDrains(n int) {
	g.t.Helper()
	eventually(g.t, fmt.Sprintf("%d engines have drained", n), func() error {
		if got := g.metric("stator_agent_drains_total", `result="idle"`); got != float64(n) {
			return fmt.Errorf("%g have", got)
		}
		return nil
	})
}

// mixedLoad sends unary requests and streams of both models from so many clients of each kind, until stop. An answer counts if it is complete.
func (g *gateway) mixedLoad(clients int) *load {
	l := &load{}
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	var number atomic.Int64
	for c := range clients * 4 {
		model, stream := "sim", c%2 == 0
		if c%4 >= 2 {
			model = "split"
		}
		all.Go(func() {
			tick := time.NewTicker(100 * time.Millisecond)
			defer tick.Stop()
			for ctx.Err() == nil {
				n := int(number.Add(1))
				if err := g.completeAnswer(model, stream, n, 10+n%7*20); err != nil {
					l.failed.Add(1)
					l.lastError.Store(err.Error())
				} else {
					l.ok.Add(1)
				}
				<-tick.C
			}
		})
	}
	l.stop = sync.OnceFunc(func() {
		cancel()
		all.Wait()
	})
	g.t.Cleanup(l.stop)
	return l
}

// completeAnswer sends a request, and returns an error if its answer does not have all tokens.
func (g *gateway) completeAnswer(model string, stream bool, number, tokens int) error {
	_, err := g.answer(model, stream, number, tokens)
	return err
}

// answer is completeAnswer with the answer.
func (g *gateway) answer(model string, stream bool, number, tokens int) (reply, error) {
	request := map[string]any{
		"model": model, "max_tokens": tokens, "stream": stream,
		"messages": []message{{"user", fmt.Sprintf("request %d asks about %s", number, strings.Repeat("engines that end ", 5))}},
	}
	if stream {
		request["stream_options"] = map[string]any{"include_usage": true}
	}
	body, err := json.Marshal(request)
	if err != nil {
		return reply{}, err
	}
	r, err := g.send(context.Background(), http.MethodPost, "/v1/chat/completions", body)
	switch {
	case err != nil:
		return r, fmt.Errorf("request %d of %s (stream %t): %w after %q", number, model, stream, err, r.body)
	case r.status != http.StatusOK,
		!strings.Contains(r.body, fmt.Sprintf(`"completion_tokens":%d`, tokens)),
		stream && !strings.HasSuffix(strings.TrimSpace(r.body), "data: [DONE]"):
		return r, fmt.Errorf("request %d of %s (stream %t): status %d: %q", number, model, stream, r.status, r.body)
	}
	return r, nil
}
