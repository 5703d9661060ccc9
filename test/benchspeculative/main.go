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
	"context"
	"flag"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/stator-project/stator/test/nextturns"
	"github.com/stator-project/stator/test/process"
	"github.com/stator-project/stator/test/talks"
)

func main() { process.Main("benchspeculative", run) }

type options struct {
	stator, envoy, loads string
	rounds, engines      int
	speed                float64
	load                 nextturns.Load
}

func run(ctx context.Context, args []string, out, progress io.Writer) error {
	var o options
	f := flag.NewFlagSet("benchspeculative", flag.ContinueOnError)
	f.SetOutput(progress)
	f.StringVar(&o.loads, "loads", "idle,shared", "`loads` to play")
	f.StringVar(&o.load.API, "api", "chat", "`API` of the conversations: chat, messages or responses")
	f.IntVar(&o.rounds, "rounds", 3, "rounds, each with all loads and both ways")
	f.IntVar(&o.engines, "engines", 4, "simulated engines")
	f.IntVar(&o.load.Conversations, "conversations", 3, "conversations at a time")
	f.IntVar(&o.load.Turns, "turns", 4, "turns of a conversation")
	f.IntVar(&o.load.Thinking, "thinking", 300, "tokens of thinking of an answer")
	f.IntVar(&o.load.Answer, "answer", 900, "further tokens of an answer")
	f.IntVar(&o.load.First, "first", 300, "words of the instructions of a conversation")
	f.IntVar(&o.load.User, "user", 20, "words of a user's message")
	f.DurationVar(&o.load.Pause, "pause", 2*time.Second, "pause of a client between two turns")
	f.Float64Var(&o.speed, "speed", 1, "divides the times of engines")
	f.Uint64Var(&o.load.Seed, "seed", 11, "seed of the texts")
	f.StringVar(&o.stator, "stator", "bin/stator", "the `program`")
	f.StringVar(&o.envoy, "envoy", "", "`path` of Envoy (default: the one in .venv)")
	if err := f.Parse(args); err != nil {
		return err
	}

	if _, ok := talks.Of(o.load.API, ""); !ok {
		return fmt.Errorf("there is no API %q: use chat, messages or responses", o.load.API)
	}

	ways := []bool{false, true}
	for load := range strings.SplitSeq(o.loads, ",") {
		if load != "idle" && load != "shared" {
			return fmt.Errorf("there is no load %q: use idle or shared", load)
		}
		var all nextturns.Comparison
		for round := range o.rounds {
			for i := range ways {
				hinted := ways[(i+round)%2]
				r, err := play(ctx, &o, load == "shared", hinted, uint64(round))
				if err != nil {
					return fmt.Errorf("load %s, hint %v: %w", load, hinted, err)
				}
				_, _ = fmt.Fprintf(progress, "load %s, round %d, hint %v: %d later turns, %d answers of others; load average %s\n",
					load, round+1, hinted, len(r.Later), len(r.Others), process.LoadAverage())
				all.Add(hinted, r)
			}
		}
		_, _ = fmt.Fprintf(out, "API %s, load %s:\n\n", o.load.API, load)
		printRow(out, nextturns.Titles)
		_, _ = fmt.Fprintln(out, strings.Repeat("|---", len(nextturns.Titles))+"|")
		for _, f := range append(all.Later(), all.Others()...) {
			printRow(out, f.Cells())
		}
		counts, list, tokens := all.Prefills()
		_, _ = fmt.Fprintf(out, "\nSpeculative prefills: %s; they computed %g tokens. Requests have stopped %g, and no other one "+
			"shared its engine with a request.\n\n", list, tokens, counts["cancelled"])
	}
	_, err := fmt.Fprintf(out, "Load average at the end: %s.\n", process.LoadAverage())
	return err
}

// printRow prints a row of a table of Markdown.
func printRow(out io.Writer, cells []any) {
	for _, c := range cells {
		_, _ = fmt.Fprintf(out, "| %v ", c)
	}
	_, _ = fmt.Fprintln(out, "|")
}

// play starts a gateway, and plays all conversations.
func play(ctx context.Context, o *options, shared, hinted bool, round uint64) (r nextturns.Result, err error) {
	g, err := process.StartGateway(ctx, process.GatewayConfig{
		Stator: o.stator, Envoy: o.envoy, LogLevel: "warn", Configuration: fmt.Sprintf(`apiVersion: stator.dev/v1alpha1
kind: Stator
gateway: {hintsFrom: everyone}
models:
- name: sim
  path: "builtin:sim"
  launch: [{engine: sim, count: %d, args: {engineSpeedup: %g, thinkTokens: %d, streamInterval: 10}}]
`, o.engines, o.speed, o.load.Thinking),
	})
	if err != nil {
		return r, err
	}
	defer g.Stop()
	if err := g.AwaitRanks(ctx, o.engines); err != nil {
		return r, err
	}

	load := o.load
	if shared {
		load.Others = o.engines
		load.OtherUser, load.OtherTo = 400, load.Thinking+50
	}
	return load.Play(ctx, g, hinted, round)
}
