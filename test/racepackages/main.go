// Racepackages prints the packages whose tests need the race detector, with --others the packages whose tests are to be run without it, and
// with --skipped a pattern of the tests that skip themselves under it, and the packages of these. `make test` runs all three lists.
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
	// skipping are the packages in race with tests that skip themselves, or play less there, and skipped the names of these tests.
	skipping, skipped []string
}

func main() {
	others := flag.Bool("others", false, "print the packages to run without the race detector")
	skipped := flag.Bool("skipped", false, "print flags and packages for the tests that skip themselves under the race detector")
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
		chosen = append([]string{"-run", "^(" + strings.Join(all.skipped, "|") + ")$"}, all.skipping...)
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
	concurrent := map[string]bool{}  // by path, with the variant
	skipped := map[string][]string{} // by path of the package under test
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
			files, err := parse(p)
			if err != nil {
				return all, err
			}
			concurrent[p.ImportPath] = slices.ContainsFunc(files, starts)
			if p.ForTest != "" && slices.Contains(p.Imports, skips) {
				skipped[p.ForTest] = append(skipped[p.ForTest], skippedTests(files)...)
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
		if names := skipped[path]; len(names) > 0 {
			all.skipping = append(all.skipping, path)
			all.skipped = append(all.skipped, names...)
		}
	}
	return all, nil
}

// skippedTests returns the names of the tests that skip themselves under the race detector, or play less there.
func skippedTests(files []*ast.File) (names []string) {
	for _, file := range files {
		for _, declaration := range file.Decls {
			function, is := declaration.(*ast.FuncDecl)
			if is && strings.HasPrefix(function.Name.Name, "Test") && callsRace(function) {
				names = append(names, function.Name.Name)
			}
		}
	}
	return names
}

// callsRace reports whether a function calls race.Skip or race.Fewer.
func callsRace(function *ast.FuncDecl) (found bool) {
	ast.Inspect(function, func(n ast.Node) bool {
		if call, is := n.(*ast.SelectorExpr); is && (call.Sel.Name == "Skip" || call.Sel.Name == "Fewer") {
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
