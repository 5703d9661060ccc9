package plan_test

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/plan"
)

// TestNext runs testdata/*.txt: what is observed, and the plan that follows. Verbs:
//
//	pool MODEL REPLICAS [role=ROLE]                   the configuration names them
//	worker NAME [model=M] [role=R] [state=S] [ranks=N]
//	next                                              prints the plan
func TestNext(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, file string) {
		f := fleet.New(fleet.Hooks{})
		var pools []plan.Configured
		datadriven.RunTest(t, file, func(t *testing.T, d *datadriven.TestData) string {
			value := map[string]string{"model": "sim", "state": "ready", "ranks": "1"}
			for _, a := range d.CmdArgs {
				if len(a.Vals) > 0 {
					value[a.Key] = a.Vals[0]
				}
			}
			role, err := fleet.ParseRole(value["role"])
			if err != nil {
				t.Fatal(err)
			}
			switch d.Cmd {
			case "pool":
				n, err := strconv.Atoi(d.CmdArgs[1].Key)
				if err != nil {
					t.Fatal(err)
				}
				pools = append(pools, plan.Configured{Model: d.CmdArgs[0].Key, Role: role, Replicas: n})
			case "worker":
				ranks, _ := strconv.Atoi(value["ranks"])
				w := fleet.Worker{Name: d.CmdArgs[0].Key, Model: value["model"], Role: role, Ranks: ranks, Address: "10.0.0.1:8000"}
				for w.State.String() != value["state"] {
					w.State++
				}
				if _, err := f.Put(w); err != nil {
					t.Fatal(err)
				}
			case "next":
				return plan.Next(plan.Observation{Pools: pools, Fleet: f.Snapshot()}).String()
			default:
				d.Fatalf(t, "unknown verb %s", d.Cmd)
			}
			return ""
		})
	})
}

// The plan does not depend on the order in which pools are named, and naming them is not
// changing them.
func TestNextIsInOrder(t *testing.T) {
	pools := []plan.Configured{{Model: "b", Replicas: 1}, {Model: "a", Role: fleet.Decode, Replicas: 2}, {Model: "a", Replicas: 3}}
	before := fmt.Sprint(pools)
	o := plan.Observation{Pools: pools, Fleet: fleet.New(fleet.Hooks{}).Snapshot()}
	first := plan.Next(o).String()
	if fmt.Sprint(pools) != before {
		t.Error("the observation was changed")
	}
	pools[0], pools[2] = pools[2], pools[0]
	if again := plan.Next(o).String(); again != first {
		t.Errorf("in another order\n%sinstead of\n%s", again, first)
	}
}
