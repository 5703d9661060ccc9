// Command benchrequest measures what one request costs in CPU: in Envoy and in the ext_proc
// process beside it, in four set-ups that are measured in turns within one run.
//
//	plain Envoy    the same listener, routes and pool, without ext_proc and without an access log
//	empty handler  our configuration, answered by a Go handler that decides nothing
//	ours, cold     stator extproc; nothing is shared between requests
//	ours, warm     stator extproc; the next turn of a conversation whose last turn was seen
//	before, …      the same two of an older program, which --before names
//	tenants        ours with tenants by a header, whose prompts have a salt each, with --front-door
//	front door     ours with keys, the same tenants, limits, access logs and tokens of answers, with --front-door
//	…, duplex      ours, cold, with Envoy's filter in mode FULL_DUPLEX_STREAMED, with --duplex
//	one leg, …     ours with one worker, cold and warm, with --legs
//	two legs, …    the same with a prefill worker, which computes every prompt, before a decode worker, with --legs
//
// The empty handler is the yardstick: the time above it is the price of deciding. Everything
// runs as processes of their own, as it would in earnest; clients and workers are in this one
// and are not counted. A cell counts only if decisions were obeyed: each set-up has a witness
// that must have seen exactly the requests that were sent.
//
// It does not measure throughput: on a small machine clients, Envoy and extproc compete, so
// that requests per second and latencies compare set-ups of one run and nothing else.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/stator-project/stator/test/process"
)

func main() { process.Main("benchrequest", Main) }

type options struct {
	stator, before, envoy, traces, model string
	jsonFile, profiles                   string
	sizes                                sizes
	requests, rounds, streams            int
	threads                              int
	duplex, frontDoor, legs, smoke       bool
}

// sizes are prompt lengths in characters.
type sizes []int

func (s *sizes) String() string {
	var out []string
	for _, n := range *s {
		out = append(out, strconv.Itoa(n))
	}
	return strings.Join(out, ",")
}

// least is the shortest prompt that has room for a dialogue of two turns.
const least = 400

// Set reads a list such as 1000,4000.
func (s *sizes) Set(text string) error {
	*s = nil
	for field := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(field))
		if err != nil || n < least || n > 10_000_000 {
			return fmt.Errorf("%q is not a number of characters from %d to 10000000", field, least)
		}
		*s = append(*s, n)
	}
	return nil
}

func readOptions(args []string, usage io.Writer) (*options, error) {
	o := &options{sizes: sizes{1000, 4000, 32000}}
	f := flag.NewFlagSet("benchrequest", flag.ContinueOnError)
	f.SetOutput(usage)
	f.IntVar(&o.requests, "requests", 3000, "requests in one cell: a set-up at a size in one round. CPU time is read to 10 ms")
	f.IntVar(&o.rounds, "rounds", 5, "rounds; figures are medians over them")
	f.IntVar(&o.streams, "streams", 16, "connections, each with one request at a time")
	f.Var(&o.sizes, "sizes", "prompt lengths in `characters`")
	f.IntVar(&o.threads, "concurrency", 2, "Envoy's worker threads")
	f.StringVar(&o.stator, "stator", "bin/stator", "the `program`")
	f.StringVar(&o.before, "before", "", "an older `program`, to be measured beside it in the same rounds")
	f.StringVar(&o.envoy, "envoy", "", "`path` of another Envoy (default: the one in .venv)")
	f.StringVar(&o.model, "model", "builtin:sim", "model `folder` whose vocabulary and template extproc uses")
	f.StringVar(&o.traces, "traces", "", "`folder` of agents' sessions to take text from (default: generated text where none are at hand)")
	f.StringVar(&o.jsonFile, "json", "", "write the figures, every cell among them, to `file`")
	f.StringVar(&o.profiles, "profile", "", "after the rounds, load the set-ups with ext_proc again and write its CPU profiles into "+
		"`folder`")
	f.BoolVar(&o.duplex, "duplex", false, "measure mode FULL_DUPLEX_STREAMED of Envoy's filter too")
	f.BoolVar(&o.frontDoor, "front-door", false, "measure a gateway with keys, limits, access logs and tokens of answers too")
	f.BoolVar(&o.legs, "legs", false, "measure a router with one worker, and one with a prefill and a decode worker, too")
	f.BoolVar(&o.smoke, "smoke", false, "one tiny round, to see that everything works; its figures mean nothing")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	if f.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}

	if o.smoke {
		o.requests = 400
		o.rounds = 1
		o.streams = 4
		o.sizes = sizes{1000}
	}

	if o.requests < 1 || o.rounds < 1 || o.streams < 1 || o.threads < 1 {
		return nil, errors.New("--requests, --rounds, --streams and --concurrency must be at least 1")
	}
	return o, nil
}

// Main runs the command; tests call it with arguments of their own.
func Main(ctx context.Context, args []string, out, progress io.Writer) error {
	if len(args) == 3 && args[0] == emptyCommand {
		return serveEmpty(ctx, args[1], args[2])
	}
	o, err := readOptions(args, progress)
	if err != nil {
		return err
	}

	text, err := load(o.traces)
	if err != nil {
		return err
	}

	b, err := begin(ctx, o, progress)
	if err != nil {
		return err
	}

	defer b.end()
	r := newReport(ctx, o, b.envoyPath, text)
	if err := b.measure(ctx, text, r); err != nil {
		return err
	}

	r.finish()
	r.print(out)

	if o.jsonFile != "" {
		if err := r.writeJSON(o.jsonFile); err != nil {
			return err
		}
	}

	if o.profiles != "" {
		return b.profile(ctx, text, o.profiles)
	}
	return nil
}
