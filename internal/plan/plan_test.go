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
//	worker NAME [model=M] [role=R] [state=S]
//	next                                              prints the plan
func TestNext(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, file string) {
		settings := &plan.Settings{}
		var workers []plan.Worker
		datadriven.RunTest(t, file, func(t *testing.T, d *datadriven.TestData) string {
			value := map[string]string{"model": "sim", "state": "ready"}
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
				settings.Models = append(settings.Models, plan.Model{
					Name: d.CmdArgs[0].Key, Pools: []plan.Configured{{Role: role, Replicas: n}},
				})
			case "worker":
				w := plan.Worker{Name: d.CmdArgs[0].Key, Model: value["model"], Role: role}
				for w.State.String() != value["state"] {
					w.State++
				}
				workers = append(workers, w)
			case "next":
				p, _ := plan.Next(plan.State{}, plan.Observation{Settings: settings, Workers: workers})
				return p.String()
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
	models := []plan.Model{
		{Name: "b", Pools: []plan.Configured{{Replicas: 1}}},
		{Name: "a", Pools: []plan.Configured{{Role: fleet.Decode, Replicas: 2}, {Replicas: 3}}},
	}
	before := fmt.Sprint(models)
	o := plan.Observation{Settings: &plan.Settings{Models: models}}
	first, _ := plan.Next(plan.State{}, o)
	if fmt.Sprint(models) != before {
		t.Error("the observation was changed")
	}
	models[0], models[1] = models[1], models[0]
	if again, _ := plan.Next(plan.State{}, o); again.String() != first.String() {
		t.Errorf("in another order\n%sinstead of\n%s", again, first)
	}
}
