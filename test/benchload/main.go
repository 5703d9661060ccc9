// Command benchload plays closed loops of equal requests against a whole gateway: `stator up` with Envoy, and simulated engines
// over HTTP. It compares policies in interleaved rounds.
//
//	load       prompts
//	prefixes   of 1,000 tokens, of which the first 900 are one of 200 prefixes
//	shared     of 1,000 tokens, of which the first 200 are the same in all prompts
//
// All requests are chats whose answers are streamed, and each answer must have status 200, all its tokens and the end of the stream.
// Each policy gets the same prompts in a round, on empty caches. Engines need the time of a mid-sized model on a GPU of a data centre
// for each pass, divided by --speed, and write several tokens of a stream at once, so that a small machine carries them. If the
// processors are busy for 80 % of the time, they determine the times, and the output has a warning.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"strings"

	"github.com/stator-project/stator/test/process"
)

func main() { process.Main("benchload", run) }

type options struct {
	stator, envoy, policies, shapes, concurrency string
	rounds, requests, answer, interval           int
	speed                                        float64
	seed                                         uint64
	quick                                        bool
}

// load is one closed loop.
type load struct {
	shape                shape
	concurrent, requests int
}

func readOptions(args []string, usage io.Writer) (o options, err error) {
	f := flag.NewFlagSet("benchload", flag.ContinueOnError)
	f.SetOutput(usage)
	f.IntVar(&o.rounds, "rounds", 3, "rounds, each with all policies and loads in a random order")
	f.StringVar(&o.concurrency, "concurrency", "256,1024", "`numbers` of concurrent requests")
	f.IntVar(&o.requests, "requests", 0, "requests of a run (default: four times the concurrent ones)")
	f.StringVar(&o.shapes, "shapes", "prefixes,shared", "`loads` to play")
	f.StringVar(&o.policies, "policies", "kv,round-robin,least-loaded,kv/dynamo@16,kv/dynamo@1",
		"`policies`, of which the first is compared with the others; kv/dynamo@N is kv with Dynamo's cost and that prefill load scale")
	f.Float64Var(&o.speed, "speed", 1, "divides the times of engines")
	f.IntVar(&o.answer, "answer", 200, "tokens of an answer")
	f.IntVar(&o.interval, "stream-interval", 10, "tokens that an engine writes at once, after the first")
	f.Uint64Var(&o.seed, "seed", 11, "seed of the prompts and of the order")
	f.StringVar(&o.stator, "stator", "bin/stator", "the `program`")
	f.StringVar(&o.envoy, "envoy", "", "`path` of Envoy (default: the one in .venv)")
	f.BoolVar(&o.quick, "quick", false, "one tiny round of two policies, to see that everything works; its figures mean nothing")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}

	if o.quick {
		o.rounds = 1
		o.answer = 40
		o.concurrency = "32"
		o.policies = "kv,round-robin"
		o.shapes = "prefixes"
	}
	if o.rounds < 1 || o.answer < 1 || o.requests < 0 || o.speed <= 0 {
		return o, errors.New("--rounds, --answer and --speed must be positive")
	}
	return o, nil
}

// loads returns the loads to play.
func (o *options) loads() (list []load, err error) {
	for name := range strings.SplitSeq(o.shapes, ",") {
		s, found := shapes[name]
		if !found {
			return nil, fmt.Errorf("there is no load %q: use prefixes or shared", name)
		}
		for text := range strings.SplitSeq(o.concurrency, ",") {
			n, err := strconv.Atoi(text)
			if err != nil || n < 1 {
				return nil, fmt.Errorf("--concurrency: %q is not a positive number", text)
			}
			l := load{shape: s, concurrent: n, requests: o.requests}
			if l.requests == 0 {
				l.requests = 4 * n
			}
			list = append(list, l)
		}
	}
	return list, nil
}

func run(ctx context.Context, args []string, out, progress io.Writer) error {
	o, err := readOptions(args, progress)
	if err != nil {
		return err
	}
	loads, err := o.loads()
	if err != nil {
		return err
	}

	policies := strings.Split(o.policies, ",")
	results := make([][][]result, len(loads)) // by load, policy and round
	for i := range results {
		results[i] = make([][]result, len(policies))
	}
	rng := rand.New(rand.NewPCG(o.seed, 1))
	for round := range o.rounds {
		for at, l := range loads {
			prompts := l.bodies(rand.New(rand.NewPCG(o.seed, uint64(2+round))), o.answer)
			for _, p := range rng.Perm(len(policies)) {
				r, err := play(ctx, &o, policies[p], l, prompts)
				if err != nil {
					return fmt.Errorf("%s, %d at a time, %s: %w", l.shape.name, l.concurrent, policies[p], err)
				}
				_, _ = fmt.Fprintf(progress, "round %d of %d: %s, %d at a time, %s: %.1f requests/s, TTFT %.0f ms\n", round+1, o.rounds,
					l.shape.name, l.concurrent, policies[p], r[rate], r[ttft])
				results[at][p] = append(results[at][p], r)
			}
		}
	}

	printHead(out, &o)
	for at, l := range loads {
		printLoad(out, l, policies, results[at])
	}
	_, err = fmt.Fprintf(out, "\nLoad average at the end: %s.\n", process.LoadAverage())
	return err
}
