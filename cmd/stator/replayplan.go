package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/stator-project/stator/internal/cli"
	"github.com/stator-project/stator/internal/plan"
	"github.com/stator-project/stator/internal/plan/planlog"
)

const replayPlanAbout = `Makes the plans of a planner's log again (planner.log in the configuration), from what was observed. It
prints the plans whose replicas changed, and whether all of them are as they were. With --algorithm, or
another bound, it shows beside them what another planner would have asked for: what it would have changed
in demand and load is not known.

  stator replay --plan plans.jsonl --algorithm reactive`

// wantsPlans reports whether the arguments of stator replay have --plan.
func wantsPlans(args []string) bool {
	return slices.ContainsFunc(args, func(a string) bool {
		name, _, _ := strings.Cut(strings.TrimLeft(a, "-"), "=")
		return strings.HasPrefix(a, "-") && name == "plan"
	})
}

// planReplay is a replay of a planner's log.
type planReplay struct {
	path, algorithm   string
	maxGPUs           int
	headroom          float64
	all, asJSON       bool
	changes           bool // settings differ from the log's
	out               io.Writer
	last              map[string]int // replicas of the last plan, by pool
	different         int            // replicas that differ from the log's
	workerSeconds     [2]float64     // of the log's plans, and of those made again
	lastAt            map[string]int64
	lastWas, lastMade map[string]int
}

func runReplayPlan(ctx context.Context, env environment, args []string) error {
	f := cli.New(env.out, env.err, "replay --plan FILE", replayPlanAbout)
	r := &planReplay{
		out: env.out, last: map[string]int{}, lastAt: map[string]int64{}, lastWas: map[string]int{}, lastMade: map[string]int{},
	}
	f.StringVar(&r.path, "plan", "", "log `file` of a planner; FILE.1 before it is read first, where it is there")
	f.StringVar(&r.algorithm, "algorithm", "", "plan with another algorithm: "+strings.Join(plan.Algorithms(), ", "))
	f.IntVar(&r.maxGPUs, "max-gpus", -1, "plan with another bound of GPUs; 0 is no bound")
	f.Float64Var(&r.headroom, "headroom", 0, "plan with another headroom")
	f.BoolVar(&r.all, "all", false, "print every plan, with its reasons")
	f.BoolVar(&r.asJSON, "json", false, "print the plans that are made as lines of JSON")
	if err := f.Read(args); err != nil {
		return err
	}
	if r.algorithm != "" && !slices.Contains(plan.Algorithms(), r.algorithm) {
		return f.UsageError("--algorithm is %q: use one of %s", r.algorithm, strings.Join(plan.Algorithms(), ", "))
	}
	r.changes = r.algorithm != "" || r.maxGPUs >= 0 || r.headroom > 0

	again := &planlog.Again{}
	if r.changes {
		again.Change = r.change
	}
	if err := r.play(ctx, again); err != nil {
		return err
	}
	return r.conclude(again)
}

// change replaces the settings that the flags name.
func (r *planReplay) change(s *plan.Settings) {
	if r.maxGPUs >= 0 {
		s.Budget.MaxGPUs = r.maxGPUs
	}
	for i := range s.Models {
		m := &s.Models[i]
		if r.algorithm != "" {
			m.Algorithm = r.algorithm
		}
		if r.headroom > 0 {
			m.Tuning.Headroom = r.headroom
		}
	}
}

// maxPlanLine bounds a line: an observation of ten thousand workers has some megabytes.
const maxPlanLine = 64 << 20

// play reads the files and makes their plans again.
func (r *planReplay) play(ctx context.Context, again *planlog.Again) error {
	files := []string{r.path}
	if _, err := os.Stat(r.path + ".1"); err == nil && continues(r.path) {
		files = []string{r.path + ".1", r.path}
	}
	for _, name := range files {
		file, err := os.Open(name)
		if err != nil {
			return fmt.Errorf("--plan: %w", err)
		}
		err = r.playFile(ctx, file, again)
		_ = file.Close()
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// continues reports whether a log continues the one before it.
func continues(path string) bool {
	file, err := os.Open(path)
	if err != nil {
		return false
	}
	defer func() { _ = file.Close() }()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, maxPlanLine)
	if !lines.Scan() {
		return false
	}
	l, err := planlog.Parse(lines.Bytes())
	return err == nil && l.Begin != nil && l.Begin.Continued
}

// playFile makes the plans of one file again. A last line that is cut is left out: the planner may be writing it.
func (r *planReplay) playFile(ctx context.Context, file io.Reader, again *planlog.Again) error {
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, maxPlanLine)
	var broken error

	for number := 1; lines.Scan() && ctx.Err() == nil; number++ {
		if broken != nil {
			return broken
		}
		l, err := planlog.Parse(lines.Bytes())
		if err != nil {
			broken = fmt.Errorf("line %d: %w", number, err)
			continue
		}

		made, equal, err := again.Next(&l)
		if err != nil {
			return fmt.Errorf("line %d: %w", number, err)
		}
		if made != nil {
			if err := r.show(&l, made, equal); err != nil {
				return err
			}
		}
	}
	if broken != nil && lines.Err() == nil && again.Plans == 0 {
		return broken
	}
	return lines.Err()
}

// show prints a plan that was made again if its replicas differ from the plan before.
func (r *planReplay) show(l *planlog.Line, made *plan.Plan, equal bool) error {
	r.count(l, made)
	if r.asJSON {
		at := l.Observation.At.Format(timeFormat)
		_, err := fmt.Fprintf(r.out, "{\"at\":%q,\"equal\":%t,\"pools\":%s}\n", at, equal, planlog.Text(made))
		return err
	}

	for i := range made.Pools {
		now := &made.Pools[i]
		key := now.Model + " " + now.Role.String()
		if last, known := r.last[key]; known && last == now.Replicas && !r.all {
			continue
		}
		r.last[key] = now.Replicas
		was := ""
		if i < len(l.Plan.Pools) && l.Plan.Pools[i].Replicas != now.Replicas {
			was = fmt.Sprintf(" (was %d)", l.Plan.Pools[i].Replicas)
		}
		_, err := fmt.Fprintf(r.out, "%s  %s %d%s: %s\n", l.Observation.At.Format(timeFormat), key, now.Replicas, was, now.Reason)
		if err != nil {
			return err
		}
	}
	return nil
}

// timeFormat is the format of the plans' times.
const timeFormat = "2006-01-02T15:04:05.000Z07:00"

// count adds up the time of workers that both plans ask for.
func (r *planReplay) count(l *planlog.Line, made *plan.Plan) {
	at := l.Observation.At.UnixNano()
	for i := range made.Pools {
		if i >= len(l.Plan.Pools) {
			break
		}
		key := made.Pools[i].Model + " " + made.Pools[i].Role.String()
		if last, known := r.lastAt[key]; known {
			seconds := float64(at-last) / 1e9
			r.workerSeconds[0] += seconds * float64(r.lastWas[key])
			r.workerSeconds[1] += seconds * float64(r.lastMade[key])
		}
		r.lastAt[key] = at
		r.lastWas[key], r.lastMade[key] = l.Plan.Pools[i].Replicas, made.Pools[i].Replicas
		if l.Plan.Pools[i].Replicas != made.Pools[i].Replicas {
			r.different++
		}
	}
}

// conclude prints the summary. Plans that should be as they were and are not are an error.
func (r *planReplay) conclude(again *planlog.Again) error {
	switch {
	case again.Plans == 0:
		return errors.New("the log has no plans")
	case r.asJSON:
	case r.changes:
		fmt.Fprintf(r.out, "%d plans; %d numbers of replicas differ; worker hours %.2f, were %.2f\n", again.Plans, r.different,
			r.workerSeconds[1]/3600, r.workerSeconds[0]/3600)
		return nil
	default:
		fmt.Fprintf(r.out, "%d plans were made again, and %d of them differ\n", again.Plans, again.Different)
	}

	if again.Different > 0 && !r.changes && !again.Continued {
		return fmt.Errorf("%d of %d plans are not as they were: another release has made them", again.Different, again.Plans)
	}
	return nil
}
