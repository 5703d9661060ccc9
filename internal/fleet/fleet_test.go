package fleet_test

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/stator-project/stator/internal/fleet"
)

// TestScenarios runs testdata/*.txt. Verbs:
//
//	put NAME [model=M] [role=R] [address=A] [epoch=E] [ranks=N] [weight=W]
//	state NAME S | remove NAME       print whether that changed anything, and which IDs went
//	load NAME RANK requests=N        adds to the booked requests of a rank
//	show                             prints the snapshot: rank IDs, states, booked requests
//	pool MODEL ROLE                  prints the ranks of a pool
//	plan [NAME=(WEIGHT[,drain])]...  replaces the settings of the plan
//	weights                          prints each worker with its state, its weight, and the configured one
//	watch                            takes the channel of changes
//	changed                          whether it was closed since
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, file string) {
		w := &world{}
		w.fleet = fleet.New(fleet.Hooks{RankGone: func(id fleet.RankID) { w.gone = append(w.gone, fmt.Sprint(id)) }})
		datadriven.RunTest(t, file, w.act)
	})
}

type world struct {
	fleet   *fleet.Fleet
	gone    []string
	changes <-chan struct{}
}

func (w *world) act(t *testing.T, d *datadriven.TestData) string {
	arg := func(i int) string { return d.CmdArgs[i].Key }
	switch d.Cmd {
	case "put":
		worker, err := parse(d)
		if err != nil {
			return err.Error() + "\n"
		}
		changed, err := w.fleet.Put(worker)
		if err != nil {
			return err.Error() + "\n"
		}
		return w.said(changed)
	case "state":
		for s := fleet.Starting; s <= fleet.Down; s++ {
			if s.String() == arg(1) {
				return w.said(w.fleet.SetState(arg(0), s))
			}
		}
		d.Fatalf(t, "unknown state %s", arg(1))
	case "remove":
		return w.said(w.fleet.Remove(arg(0)))
	case "load":
		n, _ := strconv.Atoi(arg(1))
		requests, _ := strconv.Atoi(d.CmdArgs[2].Vals[0])
		if r, ok := w.fleet.Snapshot().Rank(arg(0), n); ok {
			r.Load.Add(fleet.Amount{Requests: int64(requests)}, time.Unix(100, 0))
			return ""
		}
		return "no such rank\n"
	case "show":
		return list(w.fleet.Snapshot().Ranks)
	case "pool":
		role, err := fleet.ParseRole(arg(1))
		if err != nil {
			return err.Error() + "\n"
		}
		return list(w.fleet.Snapshot().Pool(arg(0), role))
	case "plan":
		changed, err := w.fleet.SetPlanned(parsePlan(d))
		if err != nil {
			return err.Error() + "\n"
		}
		return w.said(changed)
	case "withhold":
		names := map[string]bool{}
		for _, a := range d.CmdArgs {
			names[a.Key] = true
		}
		return w.said(w.fleet.SetWithheld(names))
	case "weights":
		return weights(w.fleet.Snapshot().Workers)
	case "watch":
		w.changes = w.fleet.Changed()
		return ""
	case "changed":
		select {
		case <-w.changes:
			return "yes\n"
		default:
			return "no\n"
		}
	}
	d.Fatalf(t, "unknown verb %s", d.Cmd)
	return ""
}

func (w *world) said(changed bool) string {
	text := "unchanged"
	if changed {
		text = "changed"
	}
	if len(w.gone) > 0 {
		text += "; gone: " + strings.Join(w.gone, " ")
	}
	w.gone = nil
	return text + "\n"
}

func list(ranks []fleet.Rank) string {
	text := ""
	for _, r := range ranks {
		text += fmt.Sprintf("%s/%d id %d, %s, %d requests\n", r.Worker.Name, r.Number, r.ID, r.Worker.State, r.Load.Booked().Requests)
	}
	return text
}

func weights(workers []*fleet.Worker) string {
	text := ""
	for _, w := range workers {
		text += fmt.Sprintf("%s %s, weight %d of %d", w.Name, w.State, w.Weight, w.ConfiguredWeight())
		if w.DrainedByOperator() {
			text += ", by an operator; without the plan " + w.StateWithoutPlan().String()
		} else if w.Withheld() {
			text += ", by the plan"
		}
		text += "\n"
	}
	return text
}

func parsePlan(d *datadriven.TestData) (planned []fleet.Planned) {
	for _, a := range d.CmdArgs {
		weight, _ := strconv.Atoi(a.Vals[0])
		planned = append(planned, fleet.Planned{Name: a.Key, Weight: uint32(weight), Drain: len(a.Vals) > 1})
	}
	return planned
}

func parse(d *datadriven.TestData) (fleet.Worker, error) {
	w := fleet.Worker{Name: d.CmdArgs[0].Key, Model: "m", Address: "10.0.0.1:8000", Ranks: 1, State: fleet.Ready}
	for _, a := range d.CmdArgs[1:] {
		v := ""
		if len(a.Vals) > 0 {
			v = a.Vals[0]
		}
		n, _ := strconv.Atoi(v)
		switch a.Key {
		case "model":
			w.Model = v
		case "address":
			w.Address = v
		case "epoch":
			w.Epoch = uint64(n)
		case "ranks":
			w.Ranks = n
		case "weight":
			w.Weight = uint32(n)
		case "role":
			role, err := fleet.ParseRole(v)
			if err != nil {
				return w, err
			}
			w.Role = role
		}
	}
	return w, nil
}

func TestReport(t *testing.T) {
	var l fleet.Load
	if _, ok := l.LastReport(); ok {
		t.Error("a new load has a report")
	}
	want := fleet.Report{At: time.Unix(1, 0), Running: 2, Waiting: 3, KVUsage: 0.5}
	l.SetReport(want, &fleet.Worker{})
	if got, ok := l.LastReport(); !ok || got != want {
		t.Errorf("reported %v, want %v", got, want)
	}
}

// Requests without a booking count once two reports have them, and while the last one is fresh.
func TestForeign(t *testing.T) {
	var l fleet.Load
	now := time.Unix(100, 0)
	l.Add(fleet.Amount{Requests: 2}, now)
	for i, c := range []struct {
		running int
		want    int64
	}{{5, 0}, {4, 2}, {2, 0}, {9, 0}, {9, 7}, {1, 0}} {
		l.SetReport(fleet.Report{At: now, Running: c.running - 1, Waiting: 1}, &fleet.Worker{})
		if got := l.View(now, 0).Untracked; got != c.want {
			t.Errorf("report %d, of %d requests: %d foreign, want %d", i, c.running, got, c.want)
		}
	}
	l.SetReport(fleet.Report{At: now, Running: 4}, &fleet.Worker{})
	l.SetReport(fleet.Report{At: now, Running: 4}, &fleet.Worker{})
	l.Add(fleet.Amount{Requests: -2}, now) // a request that ends after the report was booked when it came
	if got := l.View(now.Add(fleet.MaxReportAge), 0).Untracked; got != 2 {
		t.Errorf("%d foreign, want 2", got)
	}
	if got := l.View(now.Add(2*fleet.MaxReportAge), 0).Untracked; got != 0 {
		t.Errorf("%d foreign by an old report", got)
	}
}

// TestSnapshotsAreWhole: whatever two writers do, every snapshot is sorted, its pools hold
// exactly its ranks, and no ID or Load has two owners.
func TestSnapshotsAreWhole(t *testing.T) {
	f := fleet.New(fleet.Hooks{})
	seed := rand.Uint64()
	var wg sync.WaitGroup
	for writer := range uint64(2) {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(seed, writer))
			for range 2000 {
				name := fmt.Sprintf("w%d", rng.IntN(8))
				if rng.IntN(4) == 0 {
					f.Remove(name)
				} else if _, err := f.Put(fleet.Worker{Name: name, Model: "m", Role: fleet.Role(rng.IntN(2)), Address: "10.0.0.1:80",
					Ranks: 1 + rng.IntN(3), Epoch: rng.Uint64N(3)}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 2000 {
		s := f.Snapshot()
		ids, pooled := map[fleet.RankID]bool{}, 0
		for i, r := range s.Ranks {
			if ids[r.ID] || int(r.ID) >= s.MaxRank {
				t.Fatalf("seed %d: rank ID %d has two owners or is not below %d", seed, r.ID, s.MaxRank)
			}
			ids[r.ID] = true
			if i > 0 && s.Ranks[i-1].Worker.Name > r.Worker.Name {
				t.Fatalf("seed %d: ranks are not sorted", seed)
			}
			if got, ok := s.Rank(r.Worker.Name, r.Number); !ok || got.ID != r.ID {
				t.Fatalf("seed %d: %s/%d is not found", seed, r.Worker.Name, r.Number)
			}
		}
		for role := range fleet.Role(2) {
			pooled += len(s.Pool("m", role))
		}
		if pooled != len(s.Ranks) {
			t.Fatalf("seed %d: pools hold %d of %d ranks", seed, pooled, len(s.Ranks))
		}
	}
	wg.Wait()
}
