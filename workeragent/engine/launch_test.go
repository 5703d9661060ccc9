package engine

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/stator-project/stator/internal/fleet"
)

// TestCommandLines runs testdata/*.txt: how each kind of engine is started. Its ports are 9000
// for HTTP, 9001 for events and 9002 for their replay. Verb:
//
//	launch KIND [alias=(NAME,...)] [role=ROLE] [command=(WORD,...)]    text: args, "name value" a line
func TestCommandLines(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, file string) {
		datadriven.RunTest(t, file, func(t *testing.T, d *datadriven.TestData) string {
			l := Launch{
				Kind: d.CmdArgs[0].Key, Name: "qwen-0", Model: "qwen", ModelPath: "/models/qwen", BlockSize: 16,
				Self: "/bin/stator", Python: "/venv/python", Args: map[string]string{},
			}
			for _, a := range d.CmdArgs[1:] {
				switch a.Key {
				case "alias":
					l.Aliases = a.Vals
				case "command":
					l.Command = a.Vals
				case "role":
					role, err := fleet.ParseRole(a.Vals[0])
					if err != nil {
						d.Fatalf(t, "%v", err)
					}
					l.Role = role
				}
			}
			for line := range strings.Lines(d.Input) {
				key, v, _ := strings.Cut(strings.TrimSpace(line), " ")
				l.Args[key] = v
			}
			return printLaunch(l)
		})
	})
}

func printLaunch(l Launch) string {
	c, err := l.command([]int{9000, 9001, 9002})
	if err != nil {
		return err.Error() + "\n"
	}
	var b strings.Builder
	fmt.Fprintln(&b, c.Path)
	for _, a := range c.Args {
		if a == llamaScript {
			a = "(llamacpp.py)"
		}
		fmt.Fprintf(&b, "  %s\n", a)
	}
	for _, e := range c.Env {
		fmt.Fprintf(&b, "with %s\n", e)
	}
	w := c.Worker
	fmt.Fprintf(&b, "worker %s: %s at %s, %s, %d rank, events %q, replay %q, %d blocks of %d\n",
		w.Name, w.Engine, w.Address, w.Role, w.Ranks, w.KVEvents, w.KVReplay, w.Blocks, w.BlockSize)
	w.Epoch = 1
	if err := w.Validate(); err != nil {
		fmt.Fprintf(&b, "which is no valid worker: %v\n", err)
	}
	return b.String()
}

// Every start has ports of its own, which were free.
func TestBuildFindsPorts(t *testing.T) {
	taken := map[string]bool{}
	for range 20 {
		c, err := Launch{Kind: "sim", Name: "a", Model: "m", Self: "/bin/stator", BlockSize: 16}.Build()
		if err != nil {
			t.Fatal(err)
		}
		w := c.Worker
		addresses := map[string]bool{w.Address: true, w.KVEvents: true, w.KVReplay: true}
		if len(addresses) != 3 || w.Address == "" || w.KVEvents == "" {
			t.Fatalf("addresses %v", addresses)
		}
		taken[w.Address] = true
	}
	if len(taken) < 2 {
		t.Error("twenty starts had one port")
	}
}

func TestBuildRefuses(t *testing.T) {
	_, err := Launch{Kind: "steam", Name: "a"}.Build()
	if err == nil || err.Error() != `engine "steam" cannot be launched: use sim, llamacpp, vllm or exec` {
		t.Error(err)
	}
	if err := (Launch{Kind: "sim", Name: "a", Args: map[string]string{"blocks speed": "1"}}).Validate(); err == nil {
		t.Error("two names in one key are taken")
	}
	if err := (Launch{Kind: "steam", Name: "a"}).Validate(); err == nil {
		t.Error("an unknown kind is valid")
	}
	if c, err := (Launch{Kind: "exec", Name: "a"}).Build(); err == nil || c.Path != "" {
		t.Errorf("%+v, %v", c, err)
	}
}

// TestKindsAreSorted lists every kind of engine that an agent can start.
func TestKindsAreSorted(t *testing.T) {
	if got, want := strings.Join(Kinds(), " "), "exec llamacpp sim vllm"; got != want {
		t.Errorf("kinds %s, want %s", got, want)
	}
}
