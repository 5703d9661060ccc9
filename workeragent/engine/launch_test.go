package engine

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/stator-project/stator/internal/engines"
	"github.com/stator-project/stator/internal/fleet"
)

// TestCommandLines runs files of testdata: how each kind of engine is started, on port 9000 of host 10.0.0.7, with port 9500
// for transfers of KV caches. Verb:
//
//	launch KIND [store] [alias=(NAME,...)] [role=ROLE] [command=(WORD,...)] [gpus=(ID,...)] [env=(NAME:VALUE,...)] [dir=FOLDER]
//	    text: args, "name value" a line
func TestCommandLines(t *testing.T) {
	for _, file := range []string{
		"testdata/commands.txt", "testdata/refused.txt", "testdata/sglang.txt", "testdata/trtllm.txt", "testdata/transfers.txt",
	} {
		datadriven.RunTest(t, file, func(t *testing.T, d *datadriven.TestData) string {
			l := Launch{
				Kind: d.CmdArgs[0].Key, Name: "qwen-0", Model: "qwen", ModelPath: "/models/qwen", BlockSize: 16,
				Self: "/bin/stator", Python: "/venv/python", Args: map[string]string{},
			}
			for _, a := range d.CmdArgs[1:] {
				switch a.Key {
				case "alias":
					l.Aliases = a.Vals
				case "store":
					l.KVStore = true
				case "gpus":
					l.GPUs = a.Vals
				case "env":
					l.Env = map[string]string{}
					for _, text := range a.Vals {
						name, value, _ := strings.Cut(text, ":")
						l.Env[name] = value
					}
				case "dir":
					l.Dir = a.Vals[0]
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
	}
}

func printLaunch(l Launch) string {
	c, err := l.command(&Site{Host: "10.0.0.7", Sockets: "/run/stator"}, 9000, 9500)
	if err != nil {
		return err.Error() + "\n"
	}
	ports, err := l.transferPorts()
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
	if c.Worker.MaxRequests > 0 {
		fmt.Fprintf(&b, "%d requests at once\n", c.Worker.MaxRequests)
	}
	if c.Dir != "" {
		fmt.Fprintf(&b, "in %s\n", c.Dir)
	}
	if c.options != nil {
		fmt.Fprintf(&b, "file %s: %s", c.options.path, c.options.text)
	}
	w := c.Worker
	fmt.Fprintf(&b, "worker %s: %s at %s, %s, %d rank, events %q, replay %q, %d blocks of %d\n",
		w.Name, w.Engine, w.Address, w.Role, w.Ranks, w.KVEvents, w.KVReplay, w.Blocks, w.BlockSize)
	if w.Transfer != fleet.NoTransfer || ports > 0 {
		fmt.Fprintf(&b, "transfer %s at %q, %d ports\n", w.Transfer, w.TransferAt, ports)
	}
	w.Epoch = 1
	if err := w.Validate(); err != nil {
		fmt.Fprintf(&b, "which is no valid worker: %v\n", err)
	}
	return b.String()
}

// testSite is a place for engines on loopback.
func testSite(t *testing.T) *Site {
	t.Helper()
	site, err := NewSite("127.0.0.1", DefaultPorts, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return &site
}

func TestBuildRefuses(t *testing.T) {
	at := testSite(t)
	for _, c := range []struct {
		launch Launch
		want   string
	}{
		{Launch{Kind: "steam", Name: "a"}, `engine "steam" cannot be launched: use ` + engines.Choices((*engines.Kind).IsLaunched)},
		{Launch{Kind: "exec", Name: "a"}, "launch a: engine exec needs a command"},
	} {
		if c2, err := c.launch.Build(at); c2 != nil || err == nil || err.Error() != c.want {
			t.Errorf("%+v, %v; want %s", c2, err, c.want)
		}
		if err := c.launch.Validate(); err == nil {
			t.Errorf("%+v is valid", c.launch)
		}
	}
	if err := (Launch{Kind: "sim", Name: "a", Args: map[string]string{"blocks speed": "1"}}).Validate(); err == nil {
		t.Error("two names in one key are taken")
	}
}

// TestKinds: every kind of engine that an agent can start is listed, sorted, and has a command line.
func TestKinds(t *testing.T) {
	names := Kinds()
	if !slices.IsSorted(names) || len(names) != len(engines.Names((*engines.Kind).IsLaunched)) {
		t.Errorf("kinds %s", names)
	}
	for _, name := range names {
		l := Launch{Kind: name, Name: "a", Model: "m", ModelPath: "/m", Self: "/bin/stator", Python: "python3", BlockSize: 16,
			Args: map[string]string{}, Command: []string{"serve"}}
		if err := l.Validate(); err != nil {
			t.Error(err)
		}
		for _, option := range slices.Sorted(maps.Keys(engines.Of(name).Launch.GPUs)) {
			l.Args = map[string]string{option: "2"}
			if n, known, err := l.gpusNeeded(); n != 2 || !known || err != nil {
				t.Errorf("%s with %s: %d GPUs, %v", name, option, n, err)
			}
		}
	}
}
