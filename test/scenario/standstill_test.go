package scenario

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/plan/planlog"
)

// TestPlansThroughStoppedParts: while requests come at a steady rate, the planner, the bus and the router are stopped in turn (SIGSTOP), and
// each goes on some seconds later. No plan asks for more than one engine above the most that plans asked for before.
func TestPlansThroughStoppedParts(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "plans.jsonl")
	// An engine computes 4.4 of these prompts a second, so ten a second need three engines. There are more, and plans are not carried out, so
	// that the load of engines stays.
	p := startPartsFor(t, partsSettings{models: fmt.Sprintf(`
models:
- name: sim
  path: "builtin:sim"
  launch: [{engine: sim, count: 5, max: 16, startUp: 1s, args: {engineSpeedup: 0.03}}]
planner: {connector: local, advisory: true, algorithm: sla, interval: 1s, ttft: 0s, itl: 0s, downAfter: 2s, log: %q}
`, file)})
	come := p.steadyRequests(10, 300)

	// The first plans assume long answers, because no answer has ended.
	seen := len(awaitPlans(t, file, 0, 12))
	before := awaitPlans(t, file, seen, 8)
	need := slices.Max(before)
	if need < 2 || need > 6 {
		t.Fatalf("the load needs %d engines by the plans %v: the test is made for 2 to 6", need, before)
	}
	seen += len(before)
	for _, part := range []struct {
		name string
		*command
	}{{"planner", p.planner}, {"bus", p.bus}, {"router", p.extproc}} {
		stopped(t, part.command, func() {
			from := come.Load()
			eventually(t, "fifty requests come", func() error {
				if n := come.Load() - from; n < 50 {
					return fmt.Errorf("%d have come", n)
				}
				return nil
			})
		})
		after := awaitPlans(t, file, seen, 6)
		if most := slices.Max(after); most > need+1 {
			t.Errorf("%s: plans ask for %v engines, and for %d before", part.name, after, need)
		}
		seen += len(after)
	}
}

// stopped calls do while a process is stopped.
func stopped(t *testing.T, c *command, do func()) {
	t.Helper()
	if err := c.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.cmd.Process.Signal(syscall.SIGCONT) }() // a stopped process would not end
	do()
}

// steadyRequests sends so many requests a second, whether or not earlier ones were answered, until the test ends. It returns their number so
// far. Each has a prompt of that many tokens, which no cache has.
func (g *gateway) steadyRequests(perSecond, tokens int) *atomic.Int64 {
	come := &atomic.Int64{}
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	all.Go(func() {
		tick := time.NewTicker(time.Second / time.Duration(perSecond))
		defer tick.Stop()
		for ctx.Err() == nil {
			select {
			case <-ctx.Done():
			case <-tick.C:
				body := fmt.Sprintf(`{"model":"sim","max_tokens":2,"prompt":[%d%s]}`, come.Add(1), strings.Repeat(",1", tokens-1))
				all.Go(func() { _, _ = g.send(ctx, http.MethodPost, "/v1/completions", []byte(body)) })
			}
		}
	})
	g.t.Cleanup(func() {
		cancel()
		all.Wait()
	})
	return come
}

// awaitPlans returns how many engines the plans in a log ask for, as soon as so many of them were made with a known demand. The first plans
// are passed over.
func awaitPlans(t *testing.T, file string, passed, withDemand int) (asked []int) {
	t.Helper()
	eventually(t, "plans are made from the demand", func() error {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		asked = nil
		known := 0
		whole := text[:bytes.LastIndexByte(text, '\n')+1]
		for row := range bytes.Lines(whole) {
			line, err := planlog.Parse(row)
			if err != nil {
				t.Fatal(err)
			}
			if line.Plan == nil {
				continue
			}
			asked = append(asked, line.Plan.Pools[0].Replicas)
			if len(asked) > passed && !line.Observation.Between && len(line.Observation.Demand) > 0 {
				known++
			}
		}
		if known < withDemand {
			return fmt.Errorf("%d of %d", known, withDemand)
		}
		asked = asked[passed:]
		return nil
	})
	return asked
}
