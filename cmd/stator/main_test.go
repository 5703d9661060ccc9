package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	_ "github.com/cockroachdb/datadriven" // its flag -rewrite updates golden files here too
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/stator-project/stator/internal/engines"
	"github.com/stator-project/stator/workeragent/engine"
)

func TestMain(m *testing.M) {
	// Agents in tests run this binary between themselves and their engines. Without this it would run the tests
	// again, which would run agents again.
	if len(os.Args) > 1 && os.Args[1] == engine.HoldCommand {
		main()
	}
	testscript.Main(m, map[string]func(){"stator": main})
}

// TestScriptedCommandLines runs testdata/script/*.txtar, which call the program as people do. Besides the commands of
// testscript there is
//
//	exits CODE PROGRAM ARGS...
//
// which checks an exit code. Run it with -rewrite to update the files that "cmp" compares with.
func TestScriptedCommandLines(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		UpdateScripts:       rewrite(),
		Setup: func(e *testscript.Env) error {
			e.Setenv("LAUNCHED", engines.Choices((*engines.Kind).IsLaunched))
			e.Setenv("GORACE", "atexit_sleep_ms=0") // so that a program with the race detector ends at once
			return nil
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"exits": func(ts *testscript.TestScript, neg bool, args []string) {
				want, err := strconv.Atoi(args[0])
				ts.Check(err)
				got := 0
				if err := ts.Exec(args[1], args[2:]...); err != nil {
					var exit *exec.ExitError
					if !errors.As(err, &exit) {
						ts.Fatalf("%v", err)
					}
					got = exit.ExitCode()
				}
				if got != want {
					ts.Fatalf("exit code %d, want %d", got, want)
				}
			},
		},
	})
}

// TestCommandLineDocs compares docs/cli.md with the help of all commands. Run it with -rewrite to write the
// file.
func TestCommandLineDocs(t *testing.T) {
	var b strings.Builder
	b.WriteString("# Command line\n\nThe help of every command, as `stator help COMMAND` prints it. Exit status: 0 success, 1 failure, 2 wrong arguments.\n")
	section := func(title string, args ...string) {
		var out, errs strings.Builder
		err := Main(t.Context(), environment{out: &out, err: &errs, hard: t.Context()}, args)
		if err != nil && !errors.Is(err, flag.ErrHelp) || errs.Len() > 0 {
			t.Fatalf("%v: %v, %s", args, err, &errs)
		}
		fmt.Fprintf(&b, "\n## %s\n\n```text\n%s```\n", title, &out)
	}

	section("stator", "help")
	for _, c := range commands() {
		section("stator "+c.name, "help", c.name)
		if c.name == "replay" {
			section("stator replay compare", "replay", "compare", "-h")
		}
		if c.name == "envoy" {
			section("stator envoy snippet", "envoy", "snippet", "-h")
		}
	}

	const file = "../../docs/cli.md"
	if rewrite() {
		if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil || string(got) != b.String() {
		t.Errorf("%s differs from the help of the commands (%v): run go test ./cmd/stator -args -rewrite", file, err)
	}
}

func rewrite() bool { return flag.Lookup("rewrite").Value.String() == "true" }
