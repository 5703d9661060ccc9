package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/stator-project/stator/test/process"
	"github.com/stator-project/stator/test/stats"
)

// demo is one demonstration.
type demo struct {
	options
	gateway *process.Gateway
	out     io.Writer
	samples []sample // one each second

	mu      sync.Mutex
	arrived int             // guarded by mu; since the last sample
	ttfts   []time.Duration // guarded by mu; of requests that began to be answered since the last sample
	all     []time.Duration // guarded by mu; of all requests
	failed  int             // guarded by mu
	seconds float64         // of workers, from the plan
}

// sample is one second.
type sample struct {
	at               float64 // seconds since the start
	rate             float64 // requests that were sent
	plan             planned
	p50, p90         float64 // of the time to the first token, in seconds; 0 without a request
	failed, finished int     // so far
}

// rateAt returns the requests per second at a time since the start.
func (o *options) rateAt(t time.Duration) float64 {
	up := float64(t-o.before) / float64(o.ramp)
	down := float64(o.before+2*o.ramp+o.spike-t) / float64(o.ramp)
	return o.low + (o.high-o.low)*min(max(min(up, down), 0), 1)
}

// duration returns the duration of the whole demonstration.
func (o *options) duration() time.Duration { return o.before + 2*o.ramp + o.spike + o.rest }

// play sends requests until the time is over, and samples the plan each second. It returns when all requests have ended.
func (d *demo) play(ctx context.Context) error {
	fmt.Fprintf(d.out, "%6s %9s %9s %8s %7s %9s %9s %7s  %s\n", "s", "sent/s", "plan for", "workers", "ready", "TTFT p50", "p90", "failed",
		"reason")
	sampling, stop := context.WithCancel(ctx)
	var sampler, requests sync.WaitGroup
	defer sampler.Wait()
	defer stop()
	began := time.Now()
	failure := make(chan error, 1)
	sampler.Go(func() { failure <- d.sample(sampling, began) })

	rng := rand.New(rand.NewPCG(d.seed, 0))
	for number := 0; ; number++ {
		at := time.Since(began)
		if at >= d.duration() {
			break
		}
		pause := time.Duration(rng.ExpFloat64() / d.rateAt(at) * float64(time.Second))
		select {
		case <-time.After(pause):
		case err := <-failure:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
		d.mu.Lock()
		d.arrived++
		d.mu.Unlock()
		requests.Go(func() { d.request(ctx, number) })
	}
	requests.Wait()
	return nil
}

// request sends one request and reads its answer.
func (d *demo) request(ctx context.Context, number int) {
	began := time.Now()
	first, err := d.sendRequest(ctx, number)
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil {
		d.failed++
		return
	}
	d.ttfts = append(d.ttfts, first.Sub(began))
	d.all = append(d.all, first.Sub(began))
}

// sendRequest sends a streamed completion of token ids that no other request has, and returns when its first token came.
func (d *demo) sendRequest(ctx context.Context, number int) (first time.Time, err error) {
	tokens := make([]int, promptTokens)
	for i := range tokens {
		tokens[i] = 1 + (number*7919+i*i)%250
	}
	tokens[0], tokens[1] = 1+number%250, 1+number/250%250 // no two prompts begin alike
	body, err := json.Marshal(map[string]any{"model": "sim", "prompt": tokens, "max_tokens": answerTokens, "stream": true})
	if err != nil {
		return first, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, d.gateway.URL+"/v1/completions", bytes.NewReader(body))
	if err != nil {
		return first, err
	}
	req.Header.Set("content-type", "application/json")

	resp, err := d.gateway.Client.Do(req)
	if err != nil {
		return first, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return first, fmt.Errorf("%s", resp.Status)
	}
	buffer := make([]byte, 1)
	if _, err := io.ReadFull(resp.Body, buffer); err != nil {
		return first, err
	}
	first = time.Now()
	rest, err := io.ReadAll(resp.Body)
	if err == nil && !bytes.Contains(rest, []byte("[DONE]")) {
		err = fmt.Errorf("the answer has no end")
	}
	return first, err
}

// printEvery is the number of seconds in a line of the table.
const printEvery = 3

// sample reads the plan each second until ctx ends.
func (d *demo) sample(ctx context.Context, began time.Time) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		p, err := currentPlan(ctx, d.gateway)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}

		d.mu.Lock()
		s := sample{at: time.Since(began).Seconds(), rate: float64(d.arrived), plan: p, failed: d.failed, finished: len(d.all)}
		s.p50, s.p90 = stats.Percentile(d.ttfts, 0.5).Seconds(), stats.Percentile(d.ttfts, 0.9).Seconds()
		d.arrived, d.ttfts = 0, nil
		d.mu.Unlock()
		d.samples = append(d.samples, s)
		d.seconds += float64(p.Ready)
		if len(d.samples)%printEvery == 0 {
			d.print(s)
		}
	}
}

// print prints a line of the table.
func (d *demo) print(s sample) {
	reason := []rune(s.plan.Reason)
	if len(reason) > 70 {
		reason = append(reason[:69], '…')
	}
	fmt.Fprintf(d.out, "%6.0f %9.0f %9.1f %8d %7d %7.0f ms %6.0f ms %7d  %s\n", s.at, s.rate, s.plan.Expected, s.plan.Replicas,
		s.plan.Ready, 1e3*s.p50, 1e3*s.p90, s.failed, string(reason))
}

// conclude prints the summary.
func (d *demo) conclude() {
	misses := d.misses()
	most := 0
	for _, s := range d.samples {
		most = max(most, s.plan.Ready)
	}
	fmt.Fprintf(d.out, "\n%d requests, %d failed; TTFT p50 %v, p90 %v; %d later than %v (%.1f %%).\n", len(d.all)+d.failed, d.failed,
		stats.Percentile(d.all, 0.5).Round(time.Millisecond), stats.Percentile(d.all, 0.9).Round(time.Millisecond), misses, d.ttft,
		100*float64(misses)/float64(max(1, len(d.all))))
	fmt.Fprintf(d.out, "At most %d workers; %.2f worker hours, where %d all the time would have been %.2f.\n", most, d.seconds/3600, most,
		float64(most)*float64(len(d.samples))/3600)
}

// misses counts the requests whose first token came later than the target.
func (d *demo) misses() (n int) {
	for _, t := range d.all {
		if t > d.ttft {
			n++
		}
	}
	return n
}
