package tables

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/stator-project/stator/internal/sim"
	"github.com/stator-project/stator/test/lab/tracefiles"
	"github.com/stator-project/stator/test/stats"
)

// Noise compares routing policies on simulated engines whose times vary: see noise.yaml. It prints the tables of
// docs/results/replay.md.
//
// Every policy plays the same traces, noise and seeds. Differences are taken between runs of equal seed, and
// their interval is from a bootstrap over seeds. kv has its default weights, as users have it. Dynamo's cost has the best
// of six weights on each trace, by a search on seeds that the tables do not have. A trace that is not on this machine is
// left out.
func Noise(ctx context.Context, args []string, out, _ io.Writer) error {
	f := flag.NewFlagSet("noise", flag.ContinueOnError)
	traces := f.String("traces", "", "`folder` of traces (default: traces, then ../shared/traces)")
	seeds := f.Int("seeds", 6, "number of runs of each kind")
	jobs := f.Int("jobs", 2, "number of replays at a time")
	only := f.String("only", "", "play only situations whose names contain this `text`")
	quick := f.Bool("quick", false, "play little, to see that everything runs")
	if err := f.Parse(args); err != nil {
		return err
	}

	s, err := load("noise.yaml")
	if err != nil {
		return err
	}
	n := noise{spec: s, player: newPlayer(ctx, *jobs), traces: *traces, seeds: *seeds, out: out}
	if *quick {
		n.Situations = s.Quick
		n.seeds = 2
	}
	return n.printSituations(*only)
}

// noise is one run of the command.
type noise struct {
	*spec
	*player
	traces string // folder
	seeds  int
	out    io.Writer
}

// The contenders that are compared with each other.
const (
	rowKV, rowDynamo = 0, 1
)

// slowLevel is the level of noise that a slow start comes with.
const slowLevel = 1

// searched returns the conditions in which a setting is tried: the most noise, all kinds of it, and a slow start.
func (b *noise) searched() []string {
	return []string{b.Levels[2].Flags, b.Levels[3].Flags, b.Levels[slowLevel].Flags + slowStart}
}

const (
	// searchSeed is the first seed of the search, and searchSeeds how many it has; the tables have the seeds from 1.
	searchSeed, searchSeeds = 1001, 3
	// equalTTFT is by which part a mean TTFT may be longer and count as equal. Means of three seeds differ by as much.
	equalTTFT = 0.005
)

// slowStart makes the first prompts of one engine slow. Nothing can be known of them before they are slow, so requests that
// arrive in the first seconds of a run may wait for them. A warm-up leaves these requests out.
const slowStart, warmup = " --slow-start 1=3", "--warmup 10s"

// printSituations prints the tables of all situations.
func (b *noise) printSituations(only string) error {
	for _, s := range b.Situations {
		if !strings.Contains(s.Name, only) {
			continue
		}
		if s.Trace != "" {
			path, ok := tracefiles.Find(b.traces, s.Trace)
			if !ok {
				fmt.Fprintf(b.out, "%s is left out, because its trace is not at hand. %s\n\n", s.Name, tracefiles.Hint)
				continue
			}
			s.Flags = "--trace " + path + " " + s.Flags
		}
		if err := b.situation(s); err != nil {
			return fmt.Errorf("%s: %w", s.Name, err)
		}
	}
	return nil
}

// situation prints the tables of one situation.
func (b *noise) situation(s situation) error {
	seeds := b.seeds * s.Times
	fmt.Fprintf(b.out, "### %s\n\n", s.Name)
	chosen := make([]string, len(b.Contenders))
	for i, p := range b.Contenders {
		setting, err := b.search(s, p)
		if err != nil {
			return err
		}
		chosen[i] = p.Flags + " " + setting
		if setting != "" {
			fmt.Fprintf(b.out, "The search chose `%s` for %s.\n", setting, p.Name)
		}
	}

	fmt.Fprintf(b.out, "\nThe seeds of the tables are 1 to %d.\n", seeds)
	fmt.Fprint(b.out, "\n", head(b.titles("noise", "policy")...))
	var differences []string
	var plain [][]sim.Result // of each policy, at the level of the slow start
	for at, level := range b.Levels {
		results := make([][]sim.Result, len(b.Contenders))
		for i := range b.Contenders {
			list, err := b.playAll(1, seeds, s.Flags, level.Flags, chosen[i])
			if err != nil {
				return err
			}
			results[i] = list
			fmt.Fprint(b.out, b.tableRow(list, level.Name, b.Contenders[i].Name))
		}
		differences = append(differences, differenceRow(level.Name, results[rowKV], results[rowDynamo]))
		if at == slowLevel {
			plain = results
		}
	}

	fmt.Fprint(b.out, "\n", head("kv against Dynamo's cost", "reuse", "TTFT mean", "TTFT p99", "met"))
	fmt.Fprint(b.out, strings.Join(differences, ""), "\n")
	return b.slowStart(s, seeds, chosen, plain)
}

// slowStart prints the cost of slow first prompts on one engine. plain has the runs of each policy without them.
func (b *noise) slowStart(s situation, seeds int, chosen []string, plain [][]sim.Result) error {
	level := b.Levels[slowLevel]
	fmt.Fprintf(b.out, "Three prompts of engine 1 take 1.5 s longer (%s):\n\n", level.Name)
	fmt.Fprint(b.out, head("policy", "TTFT mean", "of it the three prompts", "TTFT mean after 10 s"))
	for _, i := range []int{rowKV, rowDynamo} {
		with, err := b.playAll(1, seeds, s.Flags, level.Flags, chosen[i], slowStart)
		if err != nil {
			return err
		}
		later, err := b.playAll(1, seeds, s.Flags, level.Flags, chosen[i], warmup)
		if err != nil {
			return err
		}
		laterWith, err := b.playAll(1, seeds, s.Flags, level.Flags, chosen[i], slowStart, warmup)
		if err != nil {
			return err
		}

		const frozen = 3 * 1500 // milliseconds
		three := frozen / float64(with[0].Completed) / stats.MeanOf(plain[i], figure("ttft").of)
		fmt.Fprintf(b.out, "| %s | %s | %+.1f %% | %s |\n", b.Contenders[i].Name, relative(with, plain[i], "ttft"), 100*three,
			relative(laterWith, later, "ttft"))
	}
	fmt.Fprintln(b.out)
	return nil
}

// search returns the best setting of a policy over the searched conditions.
func (b *noise) search(s situation, p contender) (best string, err error) {
	if len(p.Settings) == 0 {
		return "", nil
	}
	var tried []trial
	for _, setting := range p.Settings {
		t := trial{setting: setting}
		for _, noise := range b.searched() {
			results, err := b.playAll(searchSeed, min(b.seeds, searchSeeds)*s.Times, s.Flags, noise, p.Flags+" "+setting)
			if err != nil {
				return "", err
			}
			t.ttft += stats.MeanOf(results, figure("ttft").of)
			t.reuse += stats.MeanOf(results, figure("reuse").of)
		}
		tried = append(tried, t)
	}
	return choose(tried), nil
}

// trial is the result of a setting, summed over the conditions.
type trial struct {
	setting     string
	ttft, reuse float64
}

// choose returns the setting with the least mean TTFT. Settings within equalTTFT of it count as equal, and of these it is the
// one with the most reuse.
func choose(tried []trial) string {
	least := slices.MinFunc(tried, func(a, b trial) int { return cmp.Compare(a.ttft, b.ttft) }).ttft
	equal := slices.DeleteFunc(slices.Clone(tried), func(t trial) bool { return t.ttft > least*(1+equalTTFT) })
	return slices.MaxFunc(equal, func(a, b trial) int { return cmp.Compare(a.reuse, b.reuse) }).setting
}
