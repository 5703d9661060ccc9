// Command benchspeculative plays conversations by one of three APIs, with and without the hint of speculative prefill, through a whole
// gateway: `stator up` with Envoy, and simulated engines whose answers begin with thinking, which the next prompt does not have.
//
//	load     beside the conversations
//	idle     nothing
//	shared   one client for each engine, which is busy for four fifths of the time with other prompts and answers
//
// The figures are the times to the first token of later turns, and in load shared those of the other clients and of their whole answers.
// Both ways play the same conversations, in turns and on empty caches.
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
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/stator-project/stator/test/process"
	"github.com/stator-project/stator/test/stats"
	"github.com/stator-project/stator/test/streams"
	"github.com/stator-project/stator/test/talks"
)

func main() { process.Main("benchspeculative", run) }

type options struct {
	stator, envoy, loads, api                                            string
	rounds, engines, conversations, turns, thinking, answer, first, user int
	pause                                                                time.Duration
	speed                                                                float64
	seed                                                                 uint64
}

// result is one run.
type result struct {
	later         []float64 // milliseconds to the first token of each turn but the first of a conversation
	cached        []float64 // shares of their prompts
	other, whole  []float64 // milliseconds of the other clients, to the first token and to the end
	counted, load string
}

func run(ctx context.Context, args []string, out, progress io.Writer) error {
	var o options
	f := flag.NewFlagSet("benchspeculative", flag.ContinueOnError)
	f.SetOutput(progress)
	f.StringVar(&o.loads, "loads", "idle,shared", "`loads` to play")
	f.StringVar(&o.api, "api", "chat", "`API` of the conversations: chat, messages or responses")
	f.IntVar(&o.rounds, "rounds", 3, "rounds, each with all loads and both ways")
	f.IntVar(&o.engines, "engines", 4, "simulated engines")
	f.IntVar(&o.conversations, "conversations", 3, "conversations at a time")
	f.IntVar(&o.turns, "turns", 4, "turns of a conversation")
	f.IntVar(&o.thinking, "thinking", 300, "tokens of thinking of an answer")
	f.IntVar(&o.answer, "answer", 900, "further tokens of an answer")
	f.IntVar(&o.first, "first", 300, "words of the instructions of a conversation")
	f.IntVar(&o.user, "user", 20, "words of a user's message")
	f.DurationVar(&o.pause, "pause", 2*time.Second, "pause of a client between two turns")
	f.Float64Var(&o.speed, "speed", 1, "divides the times of engines")
	f.Uint64Var(&o.seed, "seed", 11, "seed of the texts")
	f.StringVar(&o.stator, "stator", "bin/stator", "the `program`")
	f.StringVar(&o.envoy, "envoy", "", "`path` of Envoy (default: the one in .venv)")
	if err := f.Parse(args); err != nil {
		return err
	}

	if _, ok := talks.Of(o.api, ""); !ok {
		return fmt.Errorf("there is no API %q: use chat, messages or responses", o.api)
	}

	ways := []bool{false, true}
	for load := range strings.SplitSeq(o.loads, ",") {
		if load != "idle" && load != "shared" {
			return fmt.Errorf("there is no load %q: use idle or shared", load)
		}
		all := map[bool]*result{false: {}, true: {}}
		for round := range o.rounds {
			for i := range ways {
				hinted := ways[(i+round)%2]
				r, err := play(ctx, &o, load == "shared", hinted, uint64(round))
				if err != nil {
					return fmt.Errorf("load %s, hint %v: %w", load, hinted, err)
				}
				_, _ = fmt.Fprintf(progress, "load %s, round %d, hint %v: later turns %.0f ms, others %.0f ms, whole %.0f ms; "+
					"load average %s%s\n",
					load, round+1, hinted, stats.Mean(r.later), stats.Mean(r.other), stats.Mean(r.whole), r.load, r.counted)
				sum := all[hinted]
				sum.later, sum.cached = append(sum.later, r.later...), append(sum.cached, r.cached...)
				sum.other, sum.whole = append(sum.other, r.other...), append(sum.whole, r.whole...)
			}
		}
		_, _ = fmt.Fprintf(out, "API %s, load %s, ms:\n\n", o.api, load)
		printLoad(out, all)
	}
	_, err := fmt.Fprintf(out, "Load average at the end: %s.\n", process.LoadAverage())
	return err
}

// printLoad prints a table of Markdown.
func printLoad(out io.Writer, all map[bool]*result) {
	_, _ = fmt.Fprint(out, "| | Number | Mean | p50 | p99 |\n|---|---|---|---|---|\n")
	row := func(name string, values []float64) {
		if len(values) > 0 {
			_, _ = fmt.Fprintf(out, "| %s | %d | %.1f | %.1f | %.1f |\n", name, len(values), stats.Mean(values),
				stats.Percentile(values, 0.5), stats.Percentile(values, 0.99))
		}
	}
	for _, hinted := range []bool{false, true} {
		name := map[bool]string{false: "without", true: "with"}[hinted] + " the hint: "
		r := all[hinted]
		row(name+"TTFT of later turns", r.later)
		row(name+"TTFT of others", r.other)
		row(name+"whole answers of others", r.whole)
		_, _ = fmt.Fprintf(out, "| %sshare of later prompts in a cache | | %.3f | | |\n", name, stats.Mean(r.cached))
	}
	_, _ = fmt.Fprintln(out)
}

// play starts a gateway, and plays all conversations.
func play(ctx context.Context, o *options, shared, hinted bool, round uint64) (r result, err error) {
	g, err := process.StartGateway(ctx, process.GatewayConfig{
		Stator: o.stator, Envoy: o.envoy, LogLevel: "warn", Configuration: fmt.Sprintf(`apiVersion: stator.dev/v1alpha1
kind: Stator
gateway: {hintsFrom: everyone}
models:
- name: sim
  path: "builtin:sim"
  launch: [{engine: sim, count: %d, args: {engineSpeedup: %g, thinkTokens: %d, streamInterval: 10}}]
`, o.engines, o.speed, o.thinking),
	})
	if err != nil {
		return r, err
	}
	defer g.Stop()
	if err := g.AwaitRanks(ctx, o.engines); err != nil {
		return r, err
	}

	var mu sync.Mutex // guards r
	var others sync.WaitGroup
	ending, end := context.WithCancel(ctx)
	defer end()
	failed := make(chan error, o.engines)
	for i := range o.engines * map[bool]int{true: 1}[shared] {
		others.Go(func() {
			err := other(ending, o, g, rand.New(rand.NewPCG(o.seed+round, uint64(1000+i))), func(a streams.Answer) {
				mu.Lock()
				defer mu.Unlock()
				r.other, r.whole = append(r.other, ms(a.First)), append(r.whole, ms(a.Whole))
			})
			if err != nil && ending.Err() == nil {
				failed <- err
				end()
			}
		})
	}

	err = process.Each(make(chan struct{}, o.conversations), o.conversations, func(i int) error {
		return converse(ending, o, g, hinted, rand.New(rand.NewPCG(o.seed+round, uint64(i))), func(a streams.Answer) {
			mu.Lock()
			defer mu.Unlock()
			r.later, r.cached = append(r.later, ms(a.First)), append(r.cached, float64(a.Cached)/float64(a.Prompt))
		})
	})
	r.load = process.LoadAverage()
	end()
	others.Wait()
	select {
	case first := <-failed:
		err = errors.Join(first, err)
	default:
	}
	if page, err := g.Get(ctx, g.Admin+"/metrics"); err == nil {
		for line := range strings.Lines(string(page)) {
			if strings.HasPrefix(line, "stator_speculative_prefill") {
				r.counted += "\n  " + strings.TrimSpace(line)
			}
		}
	}
	return r, err
}

func ms(d time.Duration) float64 { return d.Seconds() * 1000 }

// words returns n random words.
func words(rng *rand.Rand, n int) string {
	list := make([]string, n)
	for i := range list {
		list[i] = []string{"stone", "river", "green", "seven", "light", "paper", "under", "house", "north", "quiet"}[rng.IntN(10)]
	}
	return strings.Join(list, " ")
}

// converse plays one conversation. The client sends back the answers without the thinking, or with another one, which the template drops.
func converse(ctx context.Context, o *options, g *process.Gateway, hinted bool, rng *rand.Rand, later func(streams.Answer)) error {
	api, _ := talks.Of(o.api, words(rng, o.first))
	var history []any
	for turn := range o.turns {
		history = append(history, api.User(words(rng, o.user))...)
		a, text, err := send(ctx, g, &api, history, o.thinking+o.answer, hinted)
		if err != nil {
			return err
		}
		if turn > 0 {
			later(a)
		}
		history = append(history, api.Answer(text)...)
		select {
		case <-time.After(o.pause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// other sends requests of another client until ctx ends: it waits for a quarter of the time that each took.
func other(ctx context.Context, o *options, g *process.Gateway, rng *rand.Rand, took func(streams.Answer)) error {
	api := talks.Chat("")
	for ctx.Err() == nil {
		a, _, err := send(ctx, g, &api, api.User(words(rng, 400)), o.thinking+50, false)
		if err != nil {
			return err
		}
		took(a)
		select {
		case <-time.After(a.Whole / 4):
		case <-ctx.Done():
		}
	}
	return nil
}

// send sends a turn and reads the stream of its answer, with the text without the thinking.
func send(ctx context.Context, g *process.Gateway, api *talks.API, history []any, tokens int, hinted bool) (
	a streams.Answer, text string, err error,
) {
	body := api.Body(history)
	body[api.Bound], body["stream"] = tokens, true
	if api.Name == "chat" {
		body["stream_options"] = map[string]bool{"include_usage": true}
	}
	if hinted {
		body["nvext"] = map[string]any{"agent_hints": map[string]bool{"speculative_prefill": true}}
	}
	raw, err := json.Marshal(body)
	if err != nil {
		return a, "", err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, g.URL+api.Path, bytes.NewReader(raw))
	if err != nil {
		return a, "", err
	}
	r.Header.Set("Content-Type", "application/json")
	begun := time.Now()
	response, err := g.Client.Do(r)
	if err != nil {
		return a, "", err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return a, "", fmt.Errorf("status %d", response.StatusCode)
	}

	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
		if !ok {
			continue
		}
		piece, thinking := api.Delta(data)
		text += piece
		if a.First == 0 && piece+thinking != "" {
			a.First = time.Since(begun)
		}
		if bytes.Contains(data, []byte(`"usage":{`)) {
			if _, u, err := api.Read(data); err == nil {
				a.Prompt, a.Cached = max(a.Prompt, u.Prompt), max(a.Cached, u.Cached)
			}
		}
		if isLast(data) {
			a.Whole = time.Since(begun)
			return a, text, nil
		}
	}
	return a, "", errors.Join(errors.New("the stream has ended early"), lines.Err())
}

// isLast reports whether an event is the last one of a stream of any of the APIs.
func isLast(data []byte) bool {
	return string(data) == "[DONE]" || bytes.HasPrefix(data, []byte(`{"type":"message_stop"`)) ||
		bytes.HasPrefix(data, []byte(`{"type":"response.completed"`))
}
