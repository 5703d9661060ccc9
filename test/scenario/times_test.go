package scenario

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/perfmodel"
	"github.com/stator-project/stator/internal/sim"
	"github.com/stator-project/stator/internal/sim/engine"
	"github.com/stator-project/stator/internal/trace"
)

// TestRealAndVirtualTimeAgree: one engine core serves in real time, in `stator sim`, and in virtual time, in `stator replay`. The same
// arrivals must have the same results: the same tokens found in the cache, requests that end in the same order, at
// times that differ by no more than a shared machine's clock and HTTP need.
//
// The arrivals are those of the real engine, each at the time when its request was sent. Clients send when an answer
// has ended, which is just after a pass has begun. An arrival at the end of a pass would be in the next pass or not,
// by chance. The machine may stall for longer than a pass, so only five disagreements in a row count.
func TestRealAndVirtualTimeAgree(t *testing.T) {
	const (
		blocks, blockSize = 96, 16
		speed             = 0.1 // passes take 57 ms and more, so that a few are noise
	)
	var disagreement error
	for attempt := range uint64(5) {
		address := freeAddress(t)
		c := start(t, "sim", "--listen-address", address, "--blocks", fmt.Sprint(blocks), "--block-size", fmt.Sprint(blockSize), "--engine-speedup", fmt.Sprint(speed))
		eventually(t, "the engine is ready", func() error { _, err := get("http://" + address + "/health"); return err })
		list, live := playReal(t, address, rand.New(rand.NewPCG(attempt, 1)))
		c.stop()
		virtual := make([]sim.Outcome, len(list))
		_, err := sim.Run(sim.Config{
			Workers: 1,
			Engine:  engine.Config{Blocks: blocks, BlockSize: blockSize, Timing: perfmodel.Polynomial{Speedup: speed}},
			Ended:   func(o sim.Outcome) { virtual[o.Number] = o },
		}, trace.List(list))
		if err != nil {
			t.Fatal(err)
		}
		if disagreement = agree(live, virtual); disagreement == nil {
			return
		}
		t.Logf("attempt %d: %v", attempt, disagreement)
	}
	t.Error(disagreement)
}

// playReal lets six clients talk, each of whose prompts are the ones before and some tokens more:
// they find what was computed before, and are together more than the cache can keep. It returns
// what was sent, in order, and what came of it by the clients' clock.
func playReal(t *testing.T, address string, rng *rand.Rand) ([]trace.Arrival, []sim.Outcome) {
	const clients, turns = 6, 3
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	// The first request of a process is late: it finds nothing ready.
	if err := stream(ctx, address, &play{arrival: trace.Arrival{Prompt: trace.IDs{300}, Output: 1}}, time.Now()); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	var all sync.WaitGroup
	errs, plays := make([]error, clients), make([]play, clients*turns)
	for i := range clients {
		seed := rng.Uint64()
		all.Go(func() {
			rng := rand.New(rand.NewPCG(seed, uint64(i)))
			var prompt trace.IDs
			for turn := range turns {
				for range 60 + rng.IntN(60) {
					prompt = append(prompt, 300+rng.Uint32N(700))
				}
				p := &plays[i*turns+turn]
				p.arrival = trace.Arrival{Prompt: slices.Clone(prompt), Output: 2 + rng.IntN(5)}
				if errs[i] = stream(ctx, address, p, began); errs[i] != nil {
					return
				}
			}
		})
		if i == 0 { // begins a pass; the others, in whatever order they come, wait for its end
			eventually(t, "the first request runs", func() error {
				text, err := get("http://" + address + "/metrics")
				if err == nil && sample(text, "vllm:num_requests_running") < 1 {
					err = errors.New("nothing runs")
				}
				return err
			})
		}
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(plays, func(a, b play) int { return cmp.Compare(a.arrival.At, b.arrival.At) })
	var list []trace.Arrival
	var out []sim.Outcome
	first := plays[0].arrival.At
	for _, p := range plays {
		p.outcome.At, p.outcome.First, p.outcome.End = p.arrival.At-first, p.outcome.First-first, p.outcome.End-first
		list, out = append(list, p.arrival), append(out, p.outcome)
	}
	return list, out
}

// play is a request and what came of it.
type play struct {
	arrival trace.Arrival
	outcome sim.Outcome
}

// stream sends one request and reads its answer token by token.
func stream(ctx context.Context, address string, p *play, began time.Time) error {
	a, out := &p.arrival, &p.outcome
	body, err := json.Marshal(map[string]any{
		"model": "sim", "prompt": a.Prompt, "max_tokens": a.Output, "ignore_eos": true,
		"stream": true, "stream_options": map[string]any{"include_usage": true},
	})
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+address+"/v1/completions", bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	a.At = time.Since(began)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok || data == "[DONE]" {
			continue
		}
		var chunk struct {
			Choices []struct{}
			Usage   *struct {
				Prompt  int `json:"prompt_tokens"`
				Output  int `json:"completion_tokens"`
				Details struct {
					Cached int `json:"cached_tokens"`
				} `json:"prompt_tokens_details"`
			}
		}
		if err := json.Unmarshal([]byte(data), &chunk); err != nil {
			return fmt.Errorf("%w in %s", err, data)
		}
		if len(chunk.Choices) > 0 {
			if out.End = time.Since(began); out.First == 0 {
				out.First = out.End
			}
		}
		if u := chunk.Usage; u != nil {
			out.Prompt, out.Output, out.Cached = u.Prompt, u.Output, u.Details.Cached
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK || out.Output != a.Output {
		return fmt.Errorf("%s: %d tokens, want %d", resp.Status, out.Output, a.Output)
	}
	return nil
}

// agree reports where two plays of the same arrivals differ. An engine that was kept waiting for the
// processor for long does not race to catch up, so what takes longer may be later.
func agree(live, virtual []sim.Outcome) error {
	within := func(took time.Duration) time.Duration { return 60*time.Millisecond + took/8 }
	for i := range live {
		r, v := live[i], virtual[i]
		if r.Prompt != v.Prompt || r.Output != v.Output || r.Cached != v.Cached {
			return fmt.Errorf("request %d: %d of %d tokens cached in real time, %d of %d in virtual", i, r.Cached, r.Prompt, v.Cached, v.Prompt)
		}
		if d := (r.First - v.First).Abs(); d > within(v.First-v.At) {
			return fmt.Errorf("request %d has its first token after %v, and after %v in virtual time", i, r.First-r.At, v.First-v.At)
		}
		if d := (r.End - v.End).Abs(); d > within(v.End-v.At) {
			return fmt.Errorf("request %d ends after %v, and after %v in virtual time", i, r.End-r.At, v.End-v.At)
		}
		for k := range i { // those that end in one pass have no order
			if d := v.End - virtual[k].End; d.Abs() > 50*time.Millisecond && (d > 0) != (r.End > live[k].End) {
				return fmt.Errorf("requests %d and %d end in another order", k, i)
			}
		}
	}
	return nil
}
