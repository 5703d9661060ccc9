// Command chaos breaks the parts of a running cluster while clients stream answers, and counts the failures that clients see. It prints a
// line of JSON for each fault, and a table at the end.
//
//	part         number  faults
//	router       2       kill -9, SIGSTOP, its connection to the bus loses, repeats, delays or cuts messages; the disk of its log stands
//	                     still or is full
//	xds          2       kill -9, SIGSTOP
//	planner      2       kill -9, SIGSTOP
//	bus          1       kill -9, SIGSTOP
//	agent        2       kill -9, SIGSTOP; its engines survive it
//	engine       4       kill -9, SIGSTOP; agents start them again
//	line         2       resets at random bytes, and answers of broken engines; each leads to an engine of the configuration
//	envoy        2       kill -9, SIGSTOP; both listen on one port
//
// Each part is one process, and all addresses are on loopback. A part that was killed is started again after a second, except
// engines, which their agents start. A line of the result has:
//
//	requests                  streams that were asked for from before the fault until some seconds after it
//	failed_before_first_byte  requests without a status 200 and a first event
//	broken_streams            streams that ended between their first event and their end
//	wrong_answers             streams that ended, with another number of tokens than was asked for
//	leaked_bookings           bookings of the routers when no client sends any more, after at most 20 s
//	false_exact               prompts sent again, for which more was promised than the engine found
//	unpicked                  complete answers to requests for which no router decided
//	recovered_ms              from the fault until the last request that failed or broke had ended; 0 if none did
//
// With --minutes it plays faults in a random order, by --seed, with pauses of random length; each fault is printed with its time, so that
// a schedule which finds a failure can be played again. So is each request that failed, broke or was wrong. Clocks that jump and partitions
// between namespaces are not played: a static program reads the clock without a library that could change it, and the others need a root's
// rights. make test-hosts has partitions.
//
// Faults that end a router end the first of the two. The other one lives for the whole run, and meets all other faults. The last lines have
// the memory of such a long life by its thirds, after garbage collections with no client left. Caches with a bound are filled before the
// first fault: the decisions that a router keeps, its memory of prompts, and the caches of engines. What else has a bound fills up in the
// first third, which is left out of the growth.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/stator-project/stator/test/process"
)

type options struct {
	stator, envoy   string
	only, except    string
	clients, tokens int
	migration       int
	seed            uint64
	minutes         float64
	settle          time.Duration
	list, keep      bool
}

func main() { process.Main("chaos", Main) }

// Main runs the program.
func Main(ctx context.Context, args []string, out, progress io.Writer) error {
	o := options{}
	f := flag.NewFlagSet("chaos", flag.ContinueOnError)
	f.SetOutput(progress)
	f.StringVar(&o.stator, "stator", "bin/stator", "the `program`")
	f.StringVar(&o.envoy, "envoy", "", "`path` of another Envoy (default: the one in .venv)")
	f.StringVar(&o.only, "only", "", "play the faults whose names contain one of these `words`, separated by commas")
	f.StringVar(&o.except, "except", "", "leave out the faults whose names contain one of these `words`")
	f.IntVar(&o.migration, "migration", 0, "how often a stream may be continued at another worker (0: streams do not pass the routers)")
	f.IntVar(&o.clients, "clients", 40, "streams at a time")
	f.IntVar(&o.tokens, "tokens", 60, "tokens of an answer")
	f.Uint64Var(&o.seed, "seed", 1, "seed of the prompts, of the places of resets, and of the order with --minutes")
	f.Float64Var(&o.minutes, "minutes", 0, "play faults in a random order for so many minutes, instead of each once")
	f.DurationVar(&o.settle, "settle", 4*time.Second, "how long the load goes on after a fault")
	f.BoolVar(&o.list, "list", false, "print the names of the faults and end")
	f.BoolVar(&o.keep, "keep", false, "keep the folder with the logs")
	if err := f.Parse(args); err != nil {
		return err
	}

	chosen := chooseFaults(o.only, o.except)
	if len(chosen) == 0 {
		return fmt.Errorf("no fault has a name with %q in it: --list prints the names", o.only)
	}
	if o.list {
		for _, f := range chosen {
			fmt.Fprintln(out, f.name)
		}
		return nil
	}
	if o.clients < 1 || o.tokens < 2 {
		return errors.New("--clients must be at least 1, and --tokens at least 2")
	}

	c, err := startCluster(ctx, &o, progress)
	if err != nil {
		return err
	}
	defer c.stop()
	r := &run{options: &o, cluster: c, load: newLoad(c.url, &o, progress), out: out, progress: progress}
	if o.minutes > 0 {
		err = r.playRandom(ctx, chosen)
	} else {
		err = r.playEach(ctx, chosen)
	}
	r.printTable()
	r.printGrowth()
	if err != nil {
		return err
	}
	return r.verdict()
}

// chooseFaults returns the faults whose names contain one of the first words, and none of the others. No words mean all, and none.
func chooseFaults(only, except string) (chosen []fault) {
	for _, f := range faults() {
		if (only == "" || contains(f.name, only)) && (except == "" || !contains(f.name, except)) {
			chosen = append(chosen, f)
		}
	}
	return chosen
}

// contains reports whether a name contains one of the words, which commas separate.
func contains(name, words string) bool {
	return slices.ContainsFunc(strings.Split(words, ","), func(w string) bool { return strings.Contains(name, w) })
}

// result is what clients and routers saw of one fault, or of a random schedule.
type result struct {
	Scenario  string `json:"scenario"`
	Requests  int64  `json:"requests"`
	Failed    int64  `json:"failed_before_first_byte"`
	Broken    int64  `json:"broken_streams"`
	Wrong     int64  `json:"wrong_answers"`
	Leaked    int    `json:"leaked_bookings"`
	Exact     int    `json:"false_exact"`
	Recovered int64  `json:"recovered_ms"`
	Unpicked  int64  `json:"unpicked"`
	// Probes is the number of prompts that were sent again, and Found the share of their tokens that engines had cached.
	Probes int     `json:"probes"`
	Found  float64 `json:"found"`
	// Routers has the memory of each router at the end, and Parts the process memory of the other parts in MiB, by their kind.
	Routers []memory         `json:"routers"`
	Parts   map[string]int64 `json:"parts_mib"`
	// Last is an error of a client.
	Last string `json:"last_error,omitempty"`
}

// run is one run of the program.
type run struct {
	*options
	cluster  *cluster
	load     *load
	out      io.Writer
	progress io.Writer
	results  []result
}

// playEach plays faults one after the other, and counts after each.
func (r *run) playEach(ctx context.Context, chosen []fault) error {
	for _, f := range chosen {
		fmt.Fprintf(r.progress, "chaos: %s\n", f.name)
		since := r.load.begin(ctx, r.cluster)
		if err := sleep(ctx, time.Second); err != nil {
			return err
		}
		at := time.Now()
		if err := r.cluster.play(ctx, f); err != nil {
			return err
		}
		if err := sleep(ctx, r.settle); err != nil {
			return err
		}
		if err := r.count(ctx, f.name, since, at); err != nil {
			return err
		}
	}
	return nil
}

// playRandom plays faults in a random order, and counts once a minute.
func (r *run) playRandom(ctx context.Context, chosen []fault) error {
	if err := r.warmUp(ctx); err != nil {
		return err
	}
	end := time.Now().Add(time.Duration(r.minutes * float64(time.Minute)))

	for n := 1; time.Now().Before(end); n++ {
		since := r.load.begin(ctx, r.cluster)
		begun := time.Now()
		last := begun
		for time.Since(begun) < time.Minute && time.Now().Before(end) {
			if err := sleep(ctx, time.Duration(500+r.cluster.random(3000))*time.Millisecond); err != nil {
				return err
			}
			f := chosen[r.cluster.random(len(chosen))]
			last = time.Now()
			fmt.Fprintf(r.progress, "chaos: seed %d, minute %d, %4.1f s: %s\n", r.seed, n, time.Since(begun).Seconds(), f.name)
			if err := r.cluster.play(ctx, f); err != nil {
				return err
			}
		}

		// The minute ends as a single fault does.
		if err := sleep(ctx, r.settle); err != nil {
			return err
		}
		if err := r.count(ctx, fmt.Sprintf("seed %d, minute %d", r.seed, n), since, last); err != nil {
			return err
		}
	}
	return nil
}

// count ends the load and prints the line of a scenario.
func (r *run) count(ctx context.Context, name string, since counts, at time.Time) error {
	res := r.load.end(since, at)
	res.Scenario = name
	if err := r.cluster.awaitCalm(ctx); err != nil {
		return fmt.Errorf("after %s: %w", name, err)
	}
	res.Leaked = r.cluster.bookings(ctx)
	if err := r.probe(ctx, &res); err != nil {
		return fmt.Errorf("after %s: %w", name, err)
	}
	routers, err := r.cluster.memories(ctx)
	if err != nil {
		return fmt.Errorf("after %s: %w", name, err)
	}
	res.Routers = routers
	res.Parts = r.cluster.others()

	r.results = append(r.results, res)
	line, err := json.Marshal(res)
	if err == nil {
		_, err = fmt.Fprintf(r.out, "%s\n", line)
	}
	return err
}

// printTable prints the results as a table of Markdown.
func (r *run) printTable() {
	fmt.Fprintf(r.out, "\n%d clients, load average %s\n\n", r.clients, process.LoadAverage())
	fmt.Fprintln(r.out,
		"| fault | requests | failed before the first byte | broken | wrong | bookings left | false exact | unpicked | recovered, ms |"+
			" found |")
	fmt.Fprintln(r.out, "|---|---|---|---|---|---|---|---|---|---|")
	for _, x := range r.results {
		fmt.Fprintf(r.out, "| %s | %d | %d | %d | %d | %d | %d of %d | %d | %d | %.2f |\n",
			x.Scenario, x.Requests, x.Failed, x.Broken, x.Wrong, x.Leaked, x.Exact, x.Probes, x.Unpicked,
			x.Recovered, x.Found)
	}
}

// verdict is an error if an answer was wrong, a booking was left, or a cache was exact that was not.
func (r *run) verdict() error {
	var bad []string
	for _, x := range r.results {
		if x.Wrong > 0 || x.Leaked > 0 || x.Exact > 0 || x.Requests == 0 {
			bad = append(bad, x.Scenario)
		}
	}
	if len(bad) > 0 {
		return fmt.Errorf("wrong answers, bookings left, caches falsely exact, or no requests at all: %s", strings.Join(bad, "; "))
	}
	return nil
}

// sleep waits, unless ctx ends before.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
