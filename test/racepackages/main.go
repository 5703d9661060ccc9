// Racepackages prints the packages whose tests need the race detector, with --others the packages whose tests are to be run without it, and
// with --skipped flags and packages for the tests that skip themselves under it, or play less there. `make test` runs all three lists.
// --fewer is --skipped for tests that play less: `make test-long` runs these whole under the race detector.
//
// A race needs two goroutines. So a package needs the detector if its test binary has code of this module that starts one: the
// package itself, its tests, or any package of ours that they import, at any depth. Code starts a goroutine with a go statement, or
// with a call of a function that runs others concurrently, such as WaitGroup.Go, T.Parallel, time.AfterFunc and http.Serve. The
// program looks at names alone, so it takes some packages that start none, and leaves out none that do so by these means.
//
// The other packages are run without the detector. So are tests that call race.Skip or race.Fewer of test/race, in packages that need
// the detector for their other tests.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

const module = "github.com/stator-project/stator/"

// skips is the package by which tests skip themselves under the race detector.
const skips = module + "test/race"

// starters are the names of functions and methods that run others in goroutines of their own.
var starters = []string{
	"Go",                      // sync.WaitGroup and errgroup.Group
	"AfterFunc",               // time and context
	"Parallel", "RunParallel", // testing.T and testing.B
	"Serve", "ServeTLS", // net/http and gRPC
	"ListenAndServe", "ListenAndServeTLS",
	"NewServer", "NewTLSServer", "NewUnstartedServer", // net/http/httptest, gRPC and NATS
}

// listed is a package in the output of `go list`, or a variant of a package with its tests.
type listed struct {
	ImportPath string
	Dir        string
	ForTest    string
	Standard   bool
	Module     *struct{ Main bool }
	GoFiles    []string
	Imports    []string
	Deps       []string
}

// lists are packages with tests, by their paths.
type lists struct {
	race, others []string // to be run with the race detector, and without it
	// skipped are tests of packages in race that skip themselves or play less there, and fewer are the ones that play less.
	skipped, fewer tests
}

// tests are names of tests, and the packages that have them.
type tests struct{ names, packages []string }

// arguments are what `go test` needs to run the tests alone.
func (t *tests) arguments() []string {
	return append([]string{"-run", "^(" + strings.Join(t.names, "|") + ")$"}, t.packages...)
}

func (t *tests) add(path string, names []string) {
	if len(names) > 0 {
		t.packages = append(t.packages, path)
		t.names = append(t.names, names...)
	}
}

func main() {
	others := flag.Bool("others", false, "print the packages to run without the race detector")
	skipped := flag.Bool("skipped", false, "print flags and packages for tests that skip themselves or play less under the race detector")
	fewer := flag.Bool("fewer", false, "print flags and packages for the tests that play less under the race detector")
	flag.Parse()
	all, err := packages()
	if err != nil {
		fmt.Fprintf(os.Stderr, "racepackages: %v\n", err)
		os.Exit(1)
	}

	chosen := all.race
	switch {
	case *others:
		chosen = all.others
	case *skipped:
		chosen = all.skipped.arguments()
	case *fewer:
		chosen = all.fewer.arguments()
	}
	for _, path := range chosen {
		_, _ = fmt.Fprintln(os.Stdout, path)
	}
}

// packages lists the packages of this module.
func packages() (all lists, err error) {
	list := exec.Command("go", "list", "-deps", "-test", "-json=ImportPath,Dir,ForTest,Standard,Module,GoFiles,Imports,Deps", module+"...")
	list.Stderr = os.Stderr
	out, err := list.Output()
	if err != nil {
		return all, fmt.Errorf("list the packages: %w", err)
	}

	var binaries []listed
	concurrent := map[string]bool{}   // by path, with the variant
	files := map[string][]*ast.File{} // of tests that import test/race, by path of the package under test
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		err := decoder.Decode(&p)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return all, fmt.Errorf("read the list of packages: %w", err)
		}

		switch {
		case p.Standard || p.Module == nil || !p.Module.Main:
		case strings.HasSuffix(p.ImportPath, ".test"):
			binaries = append(binaries, p)
		default:
			parsed, err := parse(p)
			if err != nil {
				return all, err
			}
			concurrent[p.ImportPath] = slices.ContainsFunc(parsed, starts)
			if p.ForTest != "" && slices.Contains(p.Imports, skips) {
				files[p.ForTest] = append(files[p.ForTest], parsed...)
			}
		}
	}

	for _, b := range binaries {
		path := strings.TrimSuffix(b.ImportPath, ".test")
		races := slices.ContainsFunc(b.Deps, func(dep string) bool { return concurrent[dep] })
		if !races {
			all.others = append(all.others, path)
			continue
		}
		all.race = append(all.race, path)
		all.skipped.add(path, testsWith(files[path], "Skip", "Fewer"))
		all.fewer.add(path, testsWith(files[path], "Fewer"))
	}
	return all, nil
}

// testsWith returns the names of the tests that call one of these functions of test/race.
func testsWith(files []*ast.File, functions ...string) (names []string) {
	for _, file := range files {
		for _, declaration := range file.Decls {
			test, is := declaration.(*ast.FuncDecl)
			if is && strings.HasPrefix(test.Name.Name, "Test") && callsRace(test, functions) {
				names = append(names, test.Name.Name)
			}
		}
	}
	return names
}

// callsRace reports whether a test calls one of these functions of test/race.
func callsRace(test *ast.FuncDecl, functions []string) (found bool) {
	ast.Inspect(test, func(n ast.Node) bool {
		if call, is := n.(*ast.SelectorExpr); is && slices.Contains(functions, call.Sel.Name) {
			from, is := call.X.(*ast.Ident)
			found = found || is && from.Name == "race"
		}
		return !found
	})
	return found
}

// parse reads the files of a package.
func parse(p listed) (files []*ast.File, err error) {
	for _, name := range p.GoFiles {
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		files = append(files, file)
	}
	return files, nil
}

// starts reports whether a file starts goroutines. A name counts also if it is not called, because it may be called later.
func starts(file *ast.File) (found bool) {
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			found = true
		case *ast.SelectorExpr:
			found = found || slices.Contains(starters, n.Sel.Name)
		}
		return !found
	})
	return found
}
