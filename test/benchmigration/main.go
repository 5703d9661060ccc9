// Command benchmigration measures streams that survive their workers: `stator up` with Envoy and simulated engines, which are killed.
//
//	part    prints
//	cost    CPU time of Envoy and of Go for each token of a stream, which goes to its worker directly, through a proxy that only
//	        reads and writes, or through the relay
//	kills   streams that broke, and streams whose text differs from an unbroken run's, while a worker is killed every two seconds
//
// Both end with an error if a stream is wrong. Engines are slow, so that a small machine carries the streams; their CPU time and that of
// this client are not counted.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/stator-project/stator/internal/backoff"
	"github.com/stator-project/stator/internal/metric"
	"github.com/stator-project/stator/test/process"
)

func main() { process.Main("benchmigration", run) }

type options struct {
	stator, envoy, only                      string
	streams, engines, tokens, prompts, limit int
	rounds                                   int
	speed                                    float64
	every                                    time.Duration
}

func run(ctx context.Context, args []string, out, progress io.Writer) error {
	if len(args) > 0 && args[0] == relayBytes {
		return serveBytes(ctx, args[1:])
	}
	var o options
	f := flag.NewFlagSet("benchmigration", flag.ContinueOnError)
	f.SetOutput(progress)
	f.StringVar(&o.only, "only", "", "`part` to run: cost or kills (default both)")
	f.IntVar(&o.streams, "streams", 2000, "streams at a time of part kills")
	f.IntVar(&o.engines, "engines", 6, "simulated engines")
	f.IntVar(&o.tokens, "tokens", 200, "tokens of an answer in part kills")
	f.IntVar(&o.prompts, "prompts", 40, "different prompts")
	f.IntVar(&o.limit, "limit", 20, "how often a stream may be continued")
	f.IntVar(&o.rounds, "rounds", 3, "rounds of part cost, each with all ways")
	f.Float64Var(&o.speed, "speed", 0.1, "divides the times of engines in part kills")
	f.DurationVar(&o.every, "every", 2*time.Second, "time between two kills")
	f.StringVar(&o.stator, "stator", "bin/stator", "the `program`")
	f.StringVar(&o.envoy, "envoy", "", "`path` of Envoy (default: the one in .venv)")
	if err := f.Parse(args); err != nil {
		return err
	}
	if o.streams < 1 || o.engines < 2 || o.tokens < 1 || o.prompts < 1 || o.rounds < 1 || o.speed <= 0 || o.every <= 0 {
		return errors.New("--streams, --tokens, --prompts, --rounds, --speed and --every must be positive, and --engines at least 2")
	}

	switch o.only {
	case "cost":
		return cost(ctx, &o, out)
	case "kills":
		return kills(ctx, &o, out)
	case "":
		return errors.Join(cost(ctx, &o, out), kills(ctx, &o, out))
	}
	return fmt.Errorf("--only is %q: use cost or kills", o.only)
}

// maxSeqs is the number of requests that an engine runs at once: all of them.
const maxSeqs = "4096"

// start starts a gateway, which launches the engines.
func (o *options) start(ctx context.Context, limit int, speed float64) (*process.Gateway, error) {
	return o.startGateway(ctx, fmt.Sprintf(`  migration: {limit: %d}
  launch: [{engine: sim, count: %d, args: {engineSpeedup: %g, maxNumSeqs: %s}}]
`, limit, o.engines, speed, maxSeqs))
}

// startGateway starts a gateway with these keys of its model, and returns when it knows all engines.
func (o *options) startGateway(ctx context.Context, keys string) (*process.Gateway, error) {
	return process.StartGateway(ctx, process.GatewayConfig{
		Stator: o.stator, Envoy: o.envoy, LogLevel: "error",
		Configuration: `apiVersion: stator.dev/v1alpha1
kind: Stator
models:
- name: sim
  path: "builtin:sim"
` + keys,
		Ready: func(ctx context.Context, g *process.Gateway) error {
			ranks, err := g.Ranks(ctx)
			if err == nil && len(ranks) < o.engines {
				err = fmt.Errorf("%d of %d engines", len(ranks), o.engines)
			}
			if err != nil {
				return err
			}
			return g.Exact(ctx)
		},
	})
}

// ways are the ways of a stream in part cost.
var ways = []string{"direct", "empty", "relayed"}

// cost measures all ways in turns.
func cost(ctx context.Context, o *options, out io.Writer) error {
	const streams, tokens = 64, 300
	_, _ = fmt.Fprintf(out, "CPU µs for a token: %d streams of %d tokens\nround  way      envoy      go    sum\n", streams, tokens)
	sums, envoys := map[string]float64{}, map[string]float64{}
	for round := range o.rounds {
		for _, way := range ways {
			envoy, inGo, err := o.costOf(ctx, way, streams, tokens)
			if err != nil {
				return fmt.Errorf("%s: %w", way, err)
			}
			_, _ = fmt.Fprintf(out, "%5d  %-7s %6.1f %7.1f %6.1f\n", round+1, way, envoy, inGo, envoy+inGo)
			sums[way] += envoy + inGo
			envoys[way] += envoy
		}
	}
	for _, way := range ways[1:] {
		_, _ = fmt.Fprintf(out, "%s: %.2f of the direct way; Go alone %.2f of Envoy's own time on it\n", way, sums[way]/sums["direct"],
			(sums[way]-envoys[way])/envoys["direct"])
	}
	return nil
}

// costOf measures one way, and returns the CPU time for a token, in µs.
func (o *options) costOf(ctx context.Context, way string, streams, tokens int) (envoy, inGo float64, err error) {
	if way == "empty" {
		g, proxy, stop, err := o.startEmpty(ctx)
		if err != nil {
			return 0, 0, err
		}
		defer stop()
		return measure(ctx, g, streams, tokens, g.PID(), proxy)
	}
	limit := 0
	if way == "relayed" {
		limit = o.limit
	}
	g, err := o.start(ctx, limit, 1)
	if err != nil {
		return 0, 0, err
	}
	defer g.Stop()
	return measure(ctx, g, streams, tokens, g.PID())
}

// measure plays streams and returns the CPU time for a token, in µs: Envoy's, and the sum of other processes.
func measure(ctx context.Context, g *process.Gateway, streams, tokens int, others ...int) (envoy, inGo float64, err error) {
	var proxies []int
	for pid, line := range process.Children(g.PID()) {
		if strings.Contains(line, "envoy") {
			proxies = append(proxies, pid)
		}
	}
	cpu := func(pids []int) (sum time.Duration) {
		for _, pid := range pids {
			used, failed := process.CPU(pid)
			err = errors.Join(err, failed)
			sum += used
		}
		return sum
	}
	play := func(n int) (failed error) {
		return each(n, func(i int) error {
			text, err := read(ctx, g, i, tokens)
			if err == nil && text == "" {
				err = errors.New("an empty answer")
			}
			return err
		})
	}

	if err := play(streams); err != nil { // connections are made, and heaps grow
		return 0, 0, err
	}
	envoyBefore, goBefore := cpu(proxies), cpu(others)
	played := play(streams)
	envoyAfter, goAfter := cpu(proxies), cpu(others)
	per := func(d time.Duration) float64 { return float64(d.Microseconds()) / float64(streams*tokens) }
	return per(envoyAfter - envoyBefore), per(goAfter - goBefore), errors.Join(err, played)
}

// kills plays streams while engines are killed.
func kills(ctx context.Context, o *options, out io.Writer) error {
	g, err := o.start(ctx, o.limit, 50)
	if err != nil {
		return err
	}
	want := make([]string, o.prompts)
	err = each(o.prompts, func(i int) (err error) {
		want[i], err = read(ctx, g, i, o.tokens)
		return err
	})
	g.Stop()
	if err != nil {
		return fmt.Errorf("an unbroken run: %w", err)
	}

	g, err = o.start(ctx, o.limit, o.speed)
	if err != nil {
		return err
	}
	defer g.Stop()
	ending, end := context.WithCancel(ctx)
	killed := 0
	var killer sync.WaitGroup
	killer.Go(func() {
		for backoff.Sleep(ending, o.every) == nil {
			if kill(g.PID(), killed) {
				killed++
			}
		}
	})

	began := time.Now()
	var mu sync.Mutex
	broken, wrong := map[string]int{}, 0
	_ = each(o.streams, func(i int) error {
		text, err := read(ctx, g, i%o.prompts, o.tokens)
		mu.Lock()
		defer mu.Unlock()
		switch {
		case err != nil:
			broken[err.Error()]++
		case text != want[i%o.prompts]:
			wrong++
		}
		return nil
	})
	took := time.Since(began)
	end()
	killer.Wait()

	count := 0
	for why, n := range broken {
		count += n
		_, _ = fmt.Fprintf(out, "%6d broken: %.200s\n", n, why)
	}
	_, _ = fmt.Fprintf(out, "%d streams of %d tokens in %s, %d workers killed: %d broken, %d wrong\n", o.streams, o.tokens,
		took.Round(time.Second), killed, count, wrong)
	if err := relayed(ctx, g, out); err != nil {
		return err
	}
	if count+wrong > 0 {
		return fmt.Errorf("%d streams were broken or wrong", count+wrong)
	}
	return nil
}

// relayed prints the counters of streams.
func relayed(ctx context.Context, g *process.Gateway, out io.Writer) error {
	page, err := g.Get(ctx, g.Admin+"/metrics")
	if err != nil {
		return err
	}
	samples, err := metric.Read(bytes.NewReader(page))
	if err != nil {
		return err
	}
	for _, s := range samples {
		switch {
		case s.Name == "stator_route_bookings":
			_, _ = fmt.Fprintf(out, "%6g bookings are left\n", s.Value)
		case s.Value != 0 && (s.Name == "stator_relay_migrations_total" || s.Name == "stator_relay_lost_promises_total"):
			_, _ = fmt.Fprintf(out, "%6g %s %v\n", s.Value, s.Name, slices.Collect(maps.Values(s.Labels)))
		}
	}
	return nil
}

// each calls do for 0 to n-1, all at a time, and returns the first error.
func each(n int, do func(i int) error) error { return process.Each(make(chan struct{}, n), n, do) }

// read sends a greedy stream about a prompt and returns its text.
func read(ctx context.Context, g *process.Gateway, prompt, tokens int) (string, error) {
	body := fmt.Sprintf(`{"model":"sim","stream":true,"temperature":0,"max_tokens":%d,"messages":[{"role":"user","content":"stream %d"}]}`,
		tokens, prompt)
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, g.URL+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		return "", err
	}
	r.Header.Set("content-type", "application/json")
	response, err := g.Client.Do(r)
	if err != nil {
		return "", err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return "", fmt.Errorf("status %d", response.StatusCode)
	}

	var text strings.Builder
	lines := bufio.NewScanner(response.Body)
	for lines.Scan() {
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
		if !ok {
			continue
		}
		if string(data) == "[DONE]" {
			return text.String(), nil
		}
		var event struct {
			Choices []struct{ Delta struct{ Content string } }
			Error   struct{ Code string }
		}
		if err := json.Unmarshal(data, &event); err != nil {
			return "", fmt.Errorf("%w: %.100s", err, data)
		}
		if event.Error.Code != "" {
			return "", errors.New(event.Error.Code)
		}
		for _, c := range event.Choices {
			text.WriteString(c.Delta.Content)
		}
	}
	return "", errors.Join(lines.Err(), errors.New("the stream has no end"))
}

// kill ends an engine, each time another one. It returns false if there is none.
func kill(parent, turn int) bool {
	var engines []int
	for pid, line := range process.Children(parent) {
		if strings.Contains(line, " sim ") {
			engines = append(engines, pid)
		}
	}
	return len(engines) > 0 && syscall.Kill(engines[turn%len(engines)], syscall.SIGKILL) == nil
}
