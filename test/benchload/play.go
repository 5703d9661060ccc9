package main

import (
	"context"
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stator-project/stator/test/process"
	"github.com/stator-project/stator/test/streams"
)

// The engines, and how many requests each runs at once. requestTime bounds one request.
const (
	engines     = 8
	slots       = 128
	requestTime = 5 * time.Minute
)

// The figures of a run. Times are in milliseconds.
const (
	rate   = iota // requests a second
	tokens        // of answers, a second
	ttft          // mean
	ttft50
	ttft99
	e2e     // mean
	cached  // share of a prompt that an engine had cached
	busiest // requests of the busiest engine, divided by the mean
	own     // share of all processors that the gateway, its engines and this program used
	machine // share that all processes used, except processes of a lower priority
	columns
)

// result is one run.
type result [columns]float64

// play starts a gateway with engines, and sends it all requests.
func play(ctx context.Context, o *options, policy string, l load, bodies [][]byte) (result, error) {
	g, err := process.StartGateway(ctx, process.GatewayConfig{
		Stator: o.stator, Envoy: o.envoy, LogLevel: "warn", Configuration: configuration(o, policy),
	})
	if err != nil {
		return result{}, err
	}
	defer g.Stop()
	g.Client.Transport = &http.Transport{MaxIdleConnsPerHost: l.concurrent}
	defer g.Client.CloseIdleConnections()
	if err := g.AwaitRanks(ctx, engines); err != nil {
		return result{}, err
	}

	ours, all, err := readCPU(g)
	if err != nil {
		return result{}, err
	}
	begun := time.Now()
	replies := make([]streams.Answer, len(bodies))
	err = process.Each(make(chan struct{}, l.concurrent), len(bodies), func(i int) (err error) {
		ctx, stop := context.WithTimeout(ctx, requestTime)
		defer stop()
		replies[i], err = streams.Send(ctx, g.Client, g.URL+"/v1/chat/completions", bodies[i])
		if err == nil && replies[i].Tokens != o.answer {
			err = fmt.Errorf("an answer has %d tokens, want %d", replies[i].Tokens, o.answer)
		}
		return err
	})
	took := time.Since(begun)
	if err != nil {
		return result{}, err
	}
	oursAfter, allAfter, err := readCPU(g)
	if err != nil {
		return result{}, err
	}

	r := summarize(replies, took)
	whole := float64(runtime.NumCPU()) * took.Seconds()
	r[own] = (oursAfter - ours).Seconds() / whole
	r[machine] = (allAfter - all).Seconds() / whole
	r[busiest], err = unevenness(ctx, g, len(bodies))
	return r, err
}

// configuration returns the configuration of a gateway with a policy: see process.Router.
func configuration(o *options, policy string) string {
	return fmt.Sprintf(`apiVersion: stator.dev/v1alpha1
kind: Stator
models:
- name: sim
  path: "builtin:sim"
  router: %s
  launch: [{engine: sim, count: %d, args: {engineSpeedup: %g, maxNumSeqs: %d, streamInterval: %d}}]
`, process.Router(policy), engines, o.speed, slots, o.interval)
}

// readCPU returns CPU times: of the gateway, its engines and this program, and of the machine without processes of a lower priority.
func readCPU(g *process.Gateway) (ours, all time.Duration, err error) {
	ours, err = process.TreeCPU(g.PID())
	if err != nil {
		return 0, 0, err
	}
	all, err = process.MachineCPU()
	return ours + process.OwnCPU(), all, err
}

func summarize(replies []streams.Answer, took time.Duration) (r result) {
	n := float64(len(replies))
	var first []float64
	for _, a := range replies {
		first = append(first, a.First.Seconds()*1000)
		r[ttft] += a.First.Seconds() * 1000 / n
		r[e2e] += a.Whole.Seconds() * 1000 / n
		r[tokens] += float64(a.Tokens) / took.Seconds()
		r[cached] += float64(a.Cached) / float64(a.Prompt) / n
	}
	slices.Sort(first)
	r[ttft50] = first[len(first)/2]
	r[ttft99] = first[len(first)*99/100]
	r[rate] = n / took.Seconds()
	return r
}

// unevenness reads from the engines how many requests each has answered, and compares the largest number with the mean.
func unevenness(ctx context.Context, g *process.Gateway, requests int) (float64, error) {
	list, err := g.Ranks(ctx)
	if err != nil {
		return 0, err
	}

	var most, sum int
	for _, r := range list {
		text, err := g.Get(ctx, "http://"+r.Address+"/metrics")
		if err != nil {
			return 0, err
		}
		served := 0
		for line := range strings.Lines(string(text)) {
			if strings.HasPrefix(line, "vllm:request_success_total{") {
				n, _ := strconv.Atoi(line[strings.LastIndexByte(line, ' ')+1 : len(line)-1])
				served += n
			}
		}
		sum += served
		most = max(most, served)
	}

	if sum != requests {
		return 0, fmt.Errorf("engines have answered %d requests, want %d", sum, requests)
	}
	return float64(most*len(list)) / float64(sum), nil
}
