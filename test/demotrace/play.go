package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"sync"
	"time"

	"github.com/stator-project/stator/internal/trace"
	"github.com/stator-project/stator/test/process"
	"github.com/stator-project/stator/test/streams"
)

// The scale of a block: 512 tokens of the trace are played as 16, and the tokens that an engine
// computes in one pass shrink alike.
const (
	traceBlock    = 512
	playBlock     = 16
	tokenScale    = traceBlock / playBlock
	batchedTokens = 8192
)

// result is the result of the trace with one policy.
type result struct {
	policy    string
	completed int
	failed    int
	lastError string
	prompt    int             // prompt tokens that engines counted
	cached    int             // of them, tokens that engines had cached
	ttft      []time.Duration // as clients saw it, on the shortened clock
	perWorker map[string]int
	took      time.Duration
	unobeyed  int // requests not served by the worker picked for them
}

// play starts everything afresh, replays the rows at their times, and stops everything.
func play(ctx context.Context, o options, policy string, rows []trace.MooncakeRow, progress io.Writer) (result, error) {
	f, err := start(ctx, o, policy)
	if err != nil {
		return result{}, err
	}

	defer f.Stop()
	r := result{policy: policy, perWorker: map[string]int{}}
	began := time.Now()
	var mu sync.Mutex
	var inFlight sync.WaitGroup
	for i, row := range rows {
		due := began.Add(time.Duration((row.Timestamp - rows[0].Timestamp) / o.speed * float64(time.Millisecond)))
		select {
		case <-time.After(time.Until(due)):
		case <-ctx.Done():
			return r, ctx.Err()
		}
		inFlight.Go(func() {
			a, err := streams.Send(ctx, f.Client, f.URL+"/v1/completions", bodyOf(row))
			mu.Lock()
			defer mu.Unlock()
			r.addAnswer(a, err)
		})
		if (i+1)%100 == 0 {
			fmt.Fprintf(progress, "\r%-12s %d of %d requests", policy, i+1, len(rows))
		}
	}

	inFlight.Wait()
	r.took = time.Since(began)
	fmt.Fprintf(progress, "\r%-12s done after %.0f s            \n", policy, r.took.Seconds())
	return r, f.account(&r)
}

func (r *result) addAnswer(a streams.Answer, err error) {
	if err != nil {
		r.failed++
		r.lastError = err.Error()
		return
	}

	r.completed++
	r.prompt += a.Prompt
	r.cached += a.Cached
	r.ttft = append(r.ttft, a.First)
}

// fleet is a running gateway with its engines.
type fleet struct{ *process.Gateway }

func start(ctx context.Context, o options, policy string) (*fleet, error) {
	configuration := fmt.Sprintf(`apiVersion: stator.dev/v1alpha1
kind: Stator
models:
- name: sim
  path: "builtin:sim"
  blockSize: %d
  router: %s
  launch: [{engine: sim, count: %d, args: {blocks: %d, engineSpeedup: %g, tokenScale: %d, maxNumBatchedTokens: %d}}]
`, playBlock, process.Router(policy), o.workers, o.blocks, o.speed, tokenScale, batchedTokens/tokenScale)
	g, err := process.StartGateway(ctx, process.GatewayConfig{
		Stator: o.stator, Envoy: o.envoy, LogLevel: "warn", Configuration: configuration,
	})
	if err != nil {
		return nil, err
	}
	return &fleet{g}, nil
}

// bodyOf makes 16 token ids of each block's id: equal ids, equal tokens.
func bodyOf(r trace.MooncakeRow) []byte {
	b := []byte(`{"model":"sim","stream":true,"stream_options":{"include_usage":true},"prompt":[`)
	for i, block := range r.HashIDs {
		x := block*0x9e3779b97f4a7c15 + 1
		for j := range playBlock {
			if i+j > 0 {
				b = append(b, ',')
			}
			x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
			b = strconv.AppendUint(b, 300+(x>>33)%2000, 10) // ordinary entries of every vocabulary here
		}
	}

	return fmt.Appendf(b, `],"max_tokens":%d}`, max(1, r.Output/tokenScale))
}

// account reads from the router the requests of each worker, and the number that went to another worker than the one picked.
func (f *fleet) account(r *result) error {
	resp, err := f.Client.Get(f.Admin + "/debug/decisions?format=json&n=4096")
	if err != nil {
		return err
	}

	defer func() { _ = resp.Body.Close() }()
	var decisions []struct{ Worker string }
	if err := json.NewDecoder(resp.Body).Decode(&decisions); err != nil {
		return fmt.Errorf("read decisions: %w", err)
	}

	for _, d := range decisions {
		r.perWorker[d.Worker]++
	}
	metrics, err := f.Client.Get(f.Admin + "/metrics")
	if err != nil {
		return err
	}

	defer func() { _ = metrics.Body.Close() }()
	lines := bufio.NewScanner(metrics.Body)
	lines.Buffer(nil, 1<<20)

	for lines.Scan() {
		for _, outcome := range []string{"misdirected", "unpicked", "unserved", "retried"} {
			if value, ok := bytes.CutPrefix(lines.Bytes(), []byte(`stator_accesslog_requests_total{outcome="`+outcome+`"} `)); ok {
				n, _ := strconv.Atoi(string(value))
				r.unobeyed += n
			}
		}
	}

	return lines.Err()
}
