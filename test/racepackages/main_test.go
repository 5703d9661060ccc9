package main

import (
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestStarts: a file starts goroutines by a statement or by a function that does so.
func TestStarts(t *testing.T) {
	for text, want := range map[string]bool{
		"go f()":                          true,
		"go func() {}()":                  true,
		"var wg sync.WaitGroup; wg.Go(f)": true,
		"t.Parallel()":                    true,
		"time.AfterFunc(1, f)":            true,
		"serve := server.Serve; serve()":  true,
		"var mu sync.Mutex; mu.Lock()":    false,
		"f() // go f()":                   false,
		"g := x.Goal(); g()":              false,
	} {
		file, err := parser.ParseFile(token.NewFileSet(), "", "package p\nfunc _() { "+text+"\n}", 0)
		if err != nil {
			t.Fatal(err)
		}
		if got := starts(file); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}

// TestPackages: no package with tests is left out. The message bus starts goroutines, and so does a package that imports it. The simulation
// starts none. Each call of race.Skip and race.Fewer is found, so its test is run without the race detector.
func TestPackages(t *testing.T) {
	all, err := packages()
	if err != nil {
		t.Fatal(err)
	}

	for path, want := range map[string][2]bool{
		"bus": {true, false}, "planner/connectors/virtual": {true, false}, "test/scenario": {true, false},
		"internal/sim": {false, true}, "internal/plan": {false, true},
		"cmd/stator": {true, false},
	} {
		if got := [2]bool{slices.Contains(all.race, module+path), slices.Contains(all.others, module+path)}; got != want {
			t.Errorf("%s: with and without the race detector %v, want %v", path, got, want)
		}
	}

	out, err := exec.Command("go", "list", "-f", "{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}", module+"...").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range strings.Fields(string(out)) {
		if !slices.Contains(all.race, path) && !slices.Contains(all.others, path) {
			t.Errorf("%s is in neither list", path)
		}
	}

	calls := 0
	for _, path := range all.race {
		files, err := filepath.Glob("../../" + strings.TrimPrefix(path, module) + "/*_test.go")
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(string(text), "race.Skip(t)") + strings.Count(string(text), "race.Fewer("); n > 0 {
				calls += n
				if !slices.Contains(all.skipped.packages, path) {
					t.Errorf("%s has tests that skip themselves or play less, and no other run", path)
				}
			}
		}
	}
	if calls != len(all.skipped.names) {
		t.Errorf("%d tests call race.Skip or race.Fewer, and %d are run without the race detector: %v", calls, len(all.skipped.names), all.skipped.names)
	}
}

// longTests finds the list of the tests that `make test` leaves to `make test-long`.
var longTests = regexp.MustCompile(`(?m)^LONG_SCENARIOS := ((?:Test\w+|\\\n|\s)+)$`)

// TestLongTests: the Makefile names scenarios that exist, and `make ci` runs them. A name without a test would be found nowhere, and
// a test that was renamed would be run by `make test` again.
func TestLongTests(t *testing.T) {
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("../scenario/*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	var scenarios strings.Builder
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		scenarios.Write(text)
	}

	list := longTests.FindSubmatch(makefile)
	if list == nil {
		t.Fatal("the Makefile has no LONG_SCENARIOS")
	}
	for _, name := range strings.Fields(strings.ReplaceAll(string(list[1]), "\\", "")) {
		if !strings.Contains(scenarios.String(), "func "+name+"(t *testing.T)") {
			t.Errorf("%s is no scenario: correct LONG_SCENARIOS in the Makefile", name)
		}
	}
	_, ci, _ := strings.Cut(string(makefile), "\nci:")
	ci, _, _ = strings.Cut(ci, "\n\n")
	if !strings.Contains(ci, " test-long ") {
		t.Error("make ci does not run make test-long, so no CI runs its tests")
	}
	if _, recipe, _ := strings.Cut(string(makefile), "\ntest-long:"); !strings.Contains(recipe, "racepackages --fewer") {
		t.Error("make test-long does not run the tests that make test shortens under the race detector")
	}
}
