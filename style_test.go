package stator_test

import (
	"go/ast"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// mostAssigned is how many variables one assignment may have, unless a single call returns them.
const mostAssigned = 2

// TestAssignments refuses assignments that a reader has to match up by counting.
func TestAssignments(t *testing.T) {
	inspect(t, func(at token.Position, n ast.Node) {
		a, ok := n.(*ast.AssignStmt)
		if ok && len(a.Lhs) > mostAssigned && len(a.Rhs) > 1 {
			t.Errorf("%s: an assignment of %d variables: write one line for each", at, len(a.Lhs))
		}
	})
}

// TestIfHeaders refuses conditions that change something on the way: the header of an `if` declares
// variables, and nothing else.
func TestIfHeaders(t *testing.T) {
	inspect(t, func(at token.Position, n ast.Node) {
		i, ok := n.(*ast.IfStmt)
		if !ok || i.Init == nil {
			return
		}
		if a, ok := i.Init.(*ast.AssignStmt); !ok || a.Tok != token.DEFINE && !assignsErrors(a) {
			t.Errorf("%s: the header of an if has a side effect: move it to a line of its own", at)
		}
	})
}

// assignsErrors reports whether an assignment sets nothing but a variable named err.
func assignsErrors(a *ast.AssignStmt) bool {
	for _, e := range a.Lhs {
		if id, ok := e.(*ast.Ident); !ok || id.Name != "err" && id.Name != "_" {
			return false
		}
	}
	return true
}

// longFunction is the number of lines from which a function must have paragraphs.
const longFunction = 25

// TestParagraphs wants a blank line between the steps of long functions. Tables and switches have no
// steps, so a function whose body is one statement is left out.
func TestParagraphs(t *testing.T) {
	for path, f := range parsed(t) {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(string(data), "\n")

		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Body == nil || len(fn.Body.List) < 3 {
				continue
			}
			from, to := positions.Position(fn.Body.Lbrace).Line, positions.Position(fn.Body.Rbrace).Line
			if to-from >= longFunction && !slices.Contains(lines[from:to], "") {
				t.Errorf("%s: function %s has %d lines and no paragraph", positions.Position(fn.Pos()), fn.Name.Name, to-from)
			}
		}
	}
}

// stateful lists the packages that hold state which changes over time. They explain it: at least a
// quarter as many lines of comments as of code. Every package with a mutex is one of them, or is behind.
var stateful = []string{
	"extproc/poolmetrics", "extproc/quota",
	"admin/history", "bus", "discovery/kubernetes", "envoy", "extproc", "extproc/accesslog", "extproc/answers", "extproc/cachesync", "extproc/exchange", "extproc/prefill", "extproc/sockets",
	"extproc/speculate", "extproc/stream", "internal/child", "internal/configfile", "internal/fleet", "internal/grpcserve", "internal/kv/drift", "internal/kv/feed", "internal/kv/kvindex",
	"internal/kv/recency", "internal/kvsource", "internal/perfmodel", "internal/route", "internal/route/breaks", "internal/route/peers", "internal/route/pick", "internal/route/programs",
	"internal/route/queue", "internal/route/learned", "internal/route/predict",
	"internal/sim", "internal/sim/engine", "planner/connectors/kubernetes", "workeragent", "enginesim", "kvbm/peers",
}

const leastComments = 0.25

// behind lists packages with a mutex that have fewer comments, and what they have at least. The figures only grow.
var behind = map[string]float64{
	"cmd/stator":                0.06,
	"discovery":                 0.23,
	"internal/kvsource/sources": 0.17,
	"internal/listen":           0.17,
	"internal/weights":          0.18,
	"internal/prompt":           0.20,
	"internal/route/decision":   0.22,
	"internal/route/eligible":   0.19,
	"internal/route/score":      0.17,
	"planner":                   0.19,
	"planner/connectors/local":  0.19,
	"workeragent/engine":        0.16,
	"kvbm":                      0.23,
	"kvbm/announce":             0.22,
	"kvbm/direct":               0.23,
	"kvbm/disk":                 0.17,
	"kvbm/node":                 0.17,
	"kvbm/object":               0.19,
	"kvbm/session":              0.16,
	"kvbm/stream":               0.19,
	"nixl/transfer":             0.23,
	"nixl/wire":                 0.24,
	"xds":                       0.19,
}

// TestCommentsOfStatefulPackages counts lines that hold a comment, and lines that hold code.
func TestCommentsOfStatefulPackages(t *testing.T) {
	comments, code, locked := map[string]int{}, map[string]int{}, map[string]bool{}
	for path, f := range parsed(t) {
		pkg := filepath.ToSlash(filepath.Dir(path))
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}

		if hasMutex(f) && !strings.HasPrefix(pkg, "test/") {
			locked[pkg] = true
		}
		commented := map[int]bool{}
		for _, group := range f.Comments {
			for line := positions.Position(group.Pos()).Line; line <= positions.Position(group.End()).Line; line++ {
				commented[line] = true
			}
		}
		for i, line := range strings.Split(string(data), "\n") {
			text := strings.TrimSpace(line)
			if commented[i+1] {
				comments[pkg]++
			}
			if text != "" && !strings.HasPrefix(text, "//") {
				code[pkg]++
			}
		}
	}

	for pkg := range locked {
		if _, known := behind[pkg]; !known && !slices.Contains(stateful, pkg) {
			t.Errorf("%s has a mutex: add it to the list of stateful packages in style_test.go", pkg)
		}
	}
	for _, pkg := range stateful {
		if code[pkg] == 0 {
			t.Errorf("%s has no code: correct the list in style_test.go", pkg)
			continue
		}
		if ratio := float64(comments[pkg]) / float64(code[pkg]); ratio < leastComments {
			t.Errorf("%s has %.2f lines of comments for each line of code, less than %.2f", pkg, ratio, leastComments)
		}
	}
	for pkg, least := range behind {
		ratio := float64(comments[pkg]) / float64(code[pkg])
		switch {
		case !locked[pkg]:
			t.Errorf("%s has no mutex: correct the list in style_test.go", pkg)
		case ratio < least:
			t.Errorf("%s has %.3f lines of comments for each line of code, less than %.2f", pkg, ratio, least)
		case ratio >= leastComments:
			t.Errorf("%s has %.2f lines of comments for each line of code: it is one of the stateful packages now", pkg, ratio)
		}
	}
}

// hasMutex reports whether a struct of a file has a mutex.
func hasMutex(f *ast.File) (found bool) {
	ast.Inspect(f, func(n ast.Node) bool {
		if field, ok := n.(*ast.Field); ok {
			if sel, ok := field.Type.(*ast.SelectorExpr); ok && strings.HasSuffix(sel.Sel.Name, "Mutex") {
				found = true
			}
		}
		return !found
	})
	return found
}

// riddles are words that give code a mind, or leave open who does what. Each has a plain word instead.
var riddles = regexp.MustCompile(`(?i)\b(whoever|nobody|somebody|anybody|anew|of its own|its word|by lot|let go of|reckon\w*|` +
	`tells?|told|hears?|heard|believe[sd]?|said|says?)\b`)

// TestPlainWords reads what users see first: the documents, and the comments of exported names.
func TestPlainWords(t *testing.T) {
	for path, text := range documents(t) {
		for i, line := range strings.Split(text, "\n") {
			if word := riddles.FindString(line); word != "" {
				t.Errorf("%s:%d: %q: name who does what, in a plain word", path, i+1, word)
			}
		}
	}

	for _, f := range parsed(t) {
		for _, group := range exportedComments(f) {
			if word := riddles.FindString(group.Text()); word != "" {
				t.Errorf("%s: %q in the comment of an exported name: name who does what, in a plain word", positions.Position(group.Pos()), word)
			}
		}
	}
}

// exportedComments returns the comments of a file's package, exported declarations and exported fields.
func exportedComments(f *ast.File) (list []*ast.CommentGroup) {
	add := func(group *ast.CommentGroup, exported bool) {
		if group != nil && exported {
			list = append(list, group)
		}
	}

	add(f.Doc, true)
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			add(n.Doc, n.Name.IsExported())
			return false
		case *ast.TypeSpec:
			add(n.Doc, n.Name.IsExported())
		case *ast.GenDecl:
			add(n.Doc, true)
		case *ast.ValueSpec:
			add(n.Doc, n.Names[0].IsExported())
		case *ast.Field:
			add(n.Doc, len(n.Names) > 0 && n.Names[0].IsExported())
		}
		return true
	})
	return list
}

// inspect calls check for every node of the production code, with its position.
func inspect(t *testing.T, check func(at token.Position, n ast.Node)) {
	t.Helper()

	for _, f := range parsed(t) {
		ast.Inspect(f, func(n ast.Node) bool {
			if n != nil {
				check(positions.Position(n.Pos()), n)
			}
			return true
		})
	}
}

// parsed returns the files of the production code: no tests, nothing generated. The positions are in [positions].
func parsed(t *testing.T) map[string]*ast.File {
	t.Helper()

	all := maps.Clone(sources(t))
	maps.DeleteFunc(all, func(_ string, f *ast.File) bool { return ast.IsGenerated(f) })
	return all
}
