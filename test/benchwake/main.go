// Command benchwake measures requests for a model without engines, for which one starts: `stator up` with Envoy and simulated engines.
//
//	part    prints
//	starts  how long an engine takes to start, as its agent has seen it, and how long the first token of a request takes that came before
//	held    the memory of Envoy and of Stator before and while requests wait for an engine
//
// Both end with an error if a request fails. In part starts the next request comes when the engine of the last one has ended.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/stator-project/stator/internal/metric"
	"github.com/stator-project/stator/test/process"
	"github.com/stator-project/stator/test/stats"
)

func main() { process.Main("benchwake", run) }

type options struct {
	stator, envoy, only     string
	trials, requests, bytes int
	startUp                 time.Duration
}

func run(ctx context.Context, args []string, out, progress io.Writer) error {
	var o options
	f := flag.NewFlagSet("benchwake", flag.ContinueOnError)
	f.SetOutput(progress)
	f.StringVar(&o.only, "only", "", "`part` to run: starts or held (default both)")
	f.IntVar(&o.trials, "trials", 20, "starts of an engine")
	f.IntVar(&o.requests, "requests", 1000, "requests that wait at a time")
	f.IntVar(&o.bytes, "bytes", 4000, "bytes of the prompt of each of them")
	f.DurationVar(&o.startUp, "startup", 2*time.Second, "how long an engine loads its model")
	f.StringVar(&o.stator, "stator", "bin/stator", "the `program`")
	f.StringVar(&o.envoy, "envoy", "", "`path` of Envoy (default: the one in .venv)")
	if err := f.Parse(args); err != nil {
		return err
	}
	if o.trials < 1 || o.requests < 1 || o.bytes < 1 || o.startUp <= 0 {
		return errors.New("--trials, --requests, --bytes and --startup must be positive")
	}

	switch o.only {
	case "starts":
		return starts(ctx, &o, out, progress)
	case "held":
		return held(ctx, &o, out)
	case "":
		return errors.Join(starts(ctx, &o, out, progress), held(ctx, &o, out))
	}
	return fmt.Errorf("--only is %q: use starts or held", o.only)
}

// start starts a gateway whose model is soon idle.
func start(ctx context.Context, o *options, startUp time.Duration) (*process.Gateway, error) {
	return process.StartGateway(ctx, process.GatewayConfig{Stator: o.stator, Envoy: o.envoy, Configuration: fmt.Sprintf(`
apiVersion: stator.dev/v1alpha1
kind: Stator
planner: {connector: local}
models:
- {name: sim, path: "builtin:sim", idleAfter: 1s, launch: [{engine: sim, count: 1, args: {startup: %s}}]}
`, startUp), Ready: func(ctx context.Context, g *process.Gateway) error {
		ranks, err := g.Ranks(ctx)
		if err == nil && len(ranks) == 0 {
			err = errors.New("the first engine has not begun to start")
		}
		return err
	}})
}

// asleep returns when no engine is there.
func asleep(ctx context.Context, g *process.Gateway) error {
	return g.Await(ctx, time.Minute, func(ctx context.Context) error {
		ranks, err := g.Ranks(ctx)
		if err == nil && len(ranks) > 0 {
			err = fmt.Errorf("%s is %s", ranks[0].Worker, ranks[0].State)
		}
		return err
	})
}

// starts measures the time of starts.
func starts(ctx context.Context, o *options, out, progress io.Writer) error {
	g, err := start(ctx, o, o.startUp)
	if err != nil {
		return err
	}
	defer g.Stop()

	var engine, answer, more []float64
	for i := range o.trials {
		if err := asleep(ctx, g); err != nil {
			return err
		}
		began := time.Now()
		if err := ask(ctx, g, fmt.Sprint("trial ", i)); err != nil {
			return err
		}
		took := time.Since(began).Seconds()
		engineTook, err := lastStart(g.Log)
		if err != nil {
			return err
		}

		engine = append(engine, engineTook)
		answer = append(answer, took)
		more = append(more, took-engineTook)
		_, _ = fmt.Fprintf(progress, "%d of %d: engine %.2f s, first token %.2f s\n", i+1, o.trials, engineTook, took)
	}
	_, _ = fmt.Fprintf(out, "%d starts of an engine that loads for %s    p50 s    p95 s\n", o.trials, o.startUp)
	for _, row := range []struct {
		name   string
		values []float64
	}{
		{"start of the engine, as the agent measures it", engine}, {"first token of the request that waits", answer}, {"difference", more},
	} {
		_, _ = fmt.Fprintf(out, "%-46s %8.2f %8.2f\n", row.name, stats.Percentile(row.values, 0.5), stats.Percentile(row.values, 0.95))
	}
	return nil
}

// readyLine is a line in the log of an agent.
var readyLine = regexp.MustCompile(`msg="engine is ready" worker=\S+ after=(\S+)`)

// lastStart returns how long the last start of an engine took, in seconds.
func lastStart(log string) (float64, error) {
	text, err := os.ReadFile(log)
	if err != nil {
		return 0, err
	}
	all := readyLine.FindAllSubmatch(text, -1)
	if len(all) == 0 {
		return 0, errors.New("no engine has become ready")
	}
	took, err := time.ParseDuration(string(all[len(all)-1][1]))
	return took.Seconds(), err
}

// heldStart is long enough for all requests of part held to arrive.
const heldStart = 15 * time.Second

// held measures the memory of requests that wait.
func held(ctx context.Context, o *options, out io.Writer) error {
	g, err := start(ctx, o, heldStart)
	if err != nil {
		return err
	}
	defer g.Stop()
	if err := asleep(ctx, g); err != nil {
		return err
	}
	before, err := memory(g)
	if err != nil {
		return err
	}

	answered := make(chan error, 1)
	go func() {
		answered <- process.Each(make(chan struct{}, o.requests), o.requests, func(i int) error {
			return ask(ctx, g, fmt.Sprintf("request %d %s", i, strings.Repeat("waits ", o.bytes/len("waits "))))
		})
	}()
	if err := waiting(ctx, g, o.requests); err != nil {
		return err
	}
	while, err := memory(g)
	if err != nil {
		return err
	}
	if err := <-answered; err != nil {
		return err
	}

	_, _ = fmt.Fprintf(out, "%d requests with %d bytes wait    before MiB    while MiB    KiB each\n", o.requests, o.bytes)
	for i, name := range []string{"Stator: router, planner, bus, agent", "Envoy"} {
		_, _ = fmt.Fprintf(out, "%-40s %10.0f %12.0f %11.1f\n", name, before[i]/(1<<20), while[i]/(1<<20),
			(while[i]-before[i])/(1<<10)/float64(o.requests))
	}
	return nil
}

// memory returns the resident bytes of Stator, whose parts are one process, and of Envoy.
func memory(g *process.Gateway) (all [2]float64, err error) {
	for i, name := range []string{"stator", "envoy"} {
		pid := g.PID()
		if name == "envoy" {
			for child, line := range process.Children(pid) {
				if strings.Contains(line, "/envoy ") {
					pid = child
				}
			}
		}
		n, err := process.Resident(pid)
		if err != nil {
			return all, err
		}
		all[i] = float64(n)
	}
	return all, nil
}

// waiting returns when so many requests wait in the router.
func waiting(ctx context.Context, g *process.Gateway, n int) error {
	return g.Await(ctx, heldStart, func(ctx context.Context) error {
		page, err := g.Get(ctx, g.Admin+"/metrics")
		if err != nil {
			return err
		}
		samples, err := metric.Read(bytes.NewReader(page))
		if have := samples.Sum("stator_route_queue_requests"); err == nil && have != float64(n) {
			err = fmt.Errorf("%g of %d requests wait", have, n)
		}
		return err
	})
}

// ask sends a request for one token, which must be answered.
func ask(ctx context.Context, g *process.Gateway, prompt string) error {
	body := fmt.Sprintf(`{"model":"sim","max_tokens":1,"messages":[{"role":"user","content":%q}]}`, prompt)
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, g.URL+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("content-type", "application/json")
	response, err := g.Client.Do(r)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d: %.200s", response.StatusCode, text)
	}
	return err
}
