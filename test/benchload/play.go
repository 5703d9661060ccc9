package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stator-project/stator/test/process"
)

// slots is how many requests an engine runs at once.
const slots = 128

// requestTime bounds one request.
const requestTime = 5 * time.Minute

// result is one run. Times are in milliseconds.
type result struct {
	rate                   float64 // requests a second
	tokens                 float64 // of answers, a second
	ttft, ttft50, ttft99   float64
	e2e                    float64
	cached                 float64 // share of the prompt tokens that engines had cached
	busiest                float64 // requests of the busiest engine, divided by the mean
	own, machine, promptOf float64 // shares of all processors: of this run, and of everything without nice; tokens of a prompt
}

func (r result) String() string {
	return fmt.Sprintf("%.1f requests/s, TTFT %.0f ms, cached %.2f, CPU %.0f %%", r.rate, r.ttft, r.cached, 100*r.own)
}

// reply is what a client received.
type reply struct {
	ttft, e2e time.Duration
	usage     usage
}

type usage struct {
	Prompt  int `json:"prompt_tokens"`
	Answer  int `json:"completion_tokens"`
	Details struct {
		Cached int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

// play starts a gateway with engines, and sends it all requests.
func play(ctx context.Context, o *options, policy string, l load, bodies [][]byte) (result, error) {
	g, err := process.StartGateway(ctx, o.stator, o.envoy, configuration(o, policy))
	if err != nil {
		return result{}, err
	}
	defer g.Stop()
	g.Client.Transport = &http.Transport{MaxIdleConnsPerHost: l.concurrent}
	defer g.Client.CloseIdleConnections()
	if err := await(ctx, g, o.engines); err != nil {
		return result{}, err
	}

	before, err := readCPU(g)
	if err != nil {
		return result{}, err
	}
	begun := time.Now()
	replies := make([]reply, len(bodies))
	err = process.Each(make(chan struct{}, l.concurrent), len(bodies), func(i int) error {
		r, err := ask(ctx, g, bodies[i], o.answer)
		replies[i] = r
		return err
	})
	took := time.Since(begun)
	if err != nil {
		return result{}, err
	}
	after, err := readCPU(g)
	if err != nil {
		return result{}, err
	}

	r := summarize(replies, took)
	whole := float64(runtime.NumCPU()) * took.Seconds()
	r.own = (after.own - before.own).Seconds() / whole
	r.machine = (after.machine - before.machine).Seconds() / whole
	r.busiest, err = busiest(g, len(bodies))
	return r, err
}

// configuration returns that of a gateway. A policy may have a cost function behind a slash, and its scale behind an @.
func configuration(o *options, policy string) string {
	name, rest, _ := strings.Cut(policy, "/")
	costName, scale, scaled := strings.Cut(rest, "@")
	weights := "{}"
	if scaled {
		weights = "{prefillLoadScale: " + scale + "}"
	}
	return fmt.Sprintf(`apiVersion: stator.dev/v1alpha1
kind: Stator
models:
- name: sim
  path: "builtin:sim"
  router: {policy: %s, cost: %s, weights: %s}
  launch: [{engine: sim, count: %d, args: {engineSpeedup: %g, maxNumSeqs: %d, streamInterval: %d}}]
`, name, cmp.Or(costName, "delay"), weights, o.engines, o.speed, slots, o.interval)
}

// spent is CPU time: of the gateway, its engines and this program, and of the whole machine without processes of a lower priority.
type spent struct{ own, machine time.Duration }

func readCPU(g *process.Gateway) (s spent, err error) {
	s.own, err = process.TreeCPU(g.PID())
	if err != nil {
		return s, err
	}
	s.own += process.OwnCPU()
	s.machine, err = process.MachineCPU()
	return s, err
}

// ask sends one request and reads its answer to the end.
func ask(ctx context.Context, g *process.Gateway, body []byte, answer int) (reply, error) {
	ctx, stop := context.WithTimeout(ctx, requestTime)
	defer stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, g.URL+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return reply{}, err
	}
	req.Header.Set("Content-Type", "application/json")

	begun := time.Now()
	resp, err := g.Client.Do(req)
	if err != nil {
		return reply{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 500))
		return reply{}, fmt.Errorf("%s: %s", resp.Status, text)
	}
	r, err := readStream(resp.Body, begun)
	if err == nil && r.usage.Answer != answer {
		err = fmt.Errorf("an answer has %d tokens, want %d", r.usage.Answer, answer)
	}
	return r, err
}

// readStream reads the events of an answer. The first one that has text is the first token.
func readStream(body io.Reader, begun time.Time) (r reply, err error) {
	ended := false
	lines := bufio.NewScanner(body)
	for lines.Scan() {
		event, found := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
		if !found {
			continue
		}
		if r.ttft == 0 {
			r.ttft = time.Since(begun)
		}
		ended = string(event) == "[DONE]"
		if !bytes.Contains(event, []byte(`"usage":{`)) {
			continue
		}
		var last struct{ Usage usage }
		if err := json.Unmarshal(event, &last); err != nil {
			return r, fmt.Errorf("read usage: %w", err)
		}
		r.usage = last.Usage
	}

	if err := lines.Err(); err != nil {
		return r, fmt.Errorf("read an answer: %w", err)
	}
	if !ended {
		return r, errors.New("a stream ended before [DONE]")
	}
	r.e2e = time.Since(begun)
	return r, nil
}

func summarize(replies []reply, took time.Duration) (r result) {
	n := float64(len(replies))
	var first []float64
	var prompt, cached, answers int
	for _, a := range replies {
		first = append(first, a.ttft.Seconds()*1000)
		r.ttft += a.ttft.Seconds() * 1000 / n
		r.e2e += a.e2e.Seconds() * 1000 / n
		prompt += a.usage.Prompt
		cached += a.usage.Details.Cached
		answers += a.usage.Answer
	}
	slices.Sort(first)
	r.ttft50 = first[len(first)/2]
	r.ttft99 = first[len(first)*99/100]
	r.rate = n / took.Seconds()
	r.tokens = float64(answers) / took.Seconds()
	r.promptOf = float64(prompt) / n
	r.cached = float64(cached) / float64(prompt)
	return r
}

// rank is what the gateway knows of an engine.
type rank struct {
	Address, State string
	Cache          string `json:"cache_state"`
}

func ranks(g *process.Gateway) ([]rank, error) {
	text, err := get(g, g.Admin+"/debug/fleet?format=json")
	if err != nil {
		return nil, err
	}
	var page struct{ Ranks []rank }
	err = json.Unmarshal(text, &page)
	return page.Ranks, err
}

// await returns when all engines are ready and their caches known. The gateway itself is ready with the first of them.
func await(ctx context.Context, g *process.Gateway, engines int) error {
	for range 600 {
		list, err := ranks(g)
		if err != nil {
			return err
		}
		ready := 0
		for _, r := range list {
			if r.State == "ready" && r.Cache == "exact" {
				ready++
			}
		}
		if ready == engines {
			return nil
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return errors.New("the engines are not ready after a minute")
}

// busiest reads from the engines how many requests each has answered, and compares the largest number with the mean.
func busiest(g *process.Gateway, requests int) (float64, error) {
	list, err := ranks(g)
	if err != nil {
		return 0, err
	}
	var most, sum int
	for _, r := range list {
		text, err := get(g, "http://"+r.Address+"/metrics")
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

func get(g *process.Gateway, url string) ([]byte, error) {
	resp, err := g.Client.Get(url)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	return io.ReadAll(resp.Body)
}
