package main

import (
	"errors"
	"flag"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	_ "github.com/cockroachdb/datadriven" // its flag -rewrite updates golden files here too
	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"stator": main})
}

// TestScripts runs testdata/script/*.txtar: the program as people call it. Beside testscript's
// own commands there is
//
//	exits CODE PROGRAM ARGS...
//
// which demands an exit code. Run with -rewrite to update what "cmp" compares with.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		UpdateScripts:       rewrite(),
		Setup: func(e *testscript.Env) error {
			e.Setenv("GORACE", "atexit_sleep_ms=0") // a race-enabled program ends at once too
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

// No command is left out of the script that shows their flags.
func TestHelpIsShownOfAll(t *testing.T) {
	script, err := os.ReadFile("testdata/script/help.txtar")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range commands() {
		if !strings.Contains(string(script), "exec stator "+c.name+" -h\n") {
			t.Errorf("testdata/script/help.txtar does not show `stator %s -h`", c.name)
		}
	}
}

func rewrite() bool { return flag.Lookup("rewrite").Value.String() == "true" }
