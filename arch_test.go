// Package stator_test holds the rules of the house that a compiler does not check.
package stator_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/stator-project/stator/"

// allowed says what each package may import of ours. A package without a row imports nothing
// of ours. A row that ends in "..." allows the package and everything below it.
var allowed = map[string][]string{
	// A prompt's memory holds its block hashes too: they go with the tokens they are made of.
	"internal/prompt":    {"internal/kv/blockhash", "internal/prompt/openai", "internal/prompt/chattemplate", "internal/prompt/tokenizer"},
	"internal/perfmodel": {"internal/fleet"},
	// A file's weights are those of the function it names, and its taints a worker's.
	"internal/config":     {"internal/fleet", "internal/route/cost"},
	"internal/kv/kvevent": {"internal/kv/blockhash", "internal/fleet"},
	"internal/kv/kvindex": {"internal/kv/blockhash", "internal/fleet"},
	"internal/kv/feed":    {"internal/kv/blockhash", "internal/kv/kvevent", "internal/kv/kvindex", "internal/fleet"},
	"internal/route/cost": {"internal/fleet", "internal/perfmodel"},
	"internal/route/pick": {"internal/fleet", "internal/perfmodel", "internal/route/cost"},
	"internal/route":      {"internal/prompt", "internal/kv/blockhash", "internal/kv/kvindex", "internal/fleet", "internal/perfmodel", "internal/route/cost", "internal/route/pick", "internal/route/queue"},
	"internal/plan":       {"internal/fleet", "internal/perfmodel"},
	// The judge of routing runs the real router on the real index, with the events of its engines.
	"internal/route/decisionlog": {"internal/route", "internal/kv/blockhash"},
	"internal/sim":               {"internal/route/decisionlog", "internal/route/queue", "internal/sim/engine", "internal/route", "internal/route/cost", "internal/kv/feed", "internal/kv/kvindex", "internal/kv/kvevent", "internal/fleet", "internal/perfmodel", "internal/prompt"},
	"internal/sim/engine":        {"internal/kv/blockhash", "internal/kv/kvevent", "internal/perfmodel"},
	// A batch of events travels as content hashes, so that no token id leaves a host.
	"bus":       {"internal/fleet", "internal/kv/blockhash", "internal/kv/kvevent", "internal/kv/feed", "internal/plan"},
	"discovery": {"internal/fleet", "bus"},
	// extproc owns the router's parts: it registers the collectors of their Stats, the index's too,
	// and must name an Envoy as the access log does.
	"extproc": {"extproc/accesslog", "extproc/envoywire", "internal/prompt", "internal/prompt/openai", "internal/route", "internal/route/pick", "internal/kv/feed", "internal/kv/kvindex", "internal/wire"},
	// The messages of every request, for the two services that read them.
	"extproc/accesslog": {"extproc/envoywire"},
	"extproc/envoywire": {"internal/wire"},
	"planner":           {"internal/plan", "internal/fleet", "bus"},
	"xds":               {"internal/plan", "internal/fleet", "internal/wire"},
	// The agent keeps what its own engines hold, as a router does, so that it can tell one that
	// starts late.
	"workeragent":           {"workeragent/...", "child", "internal/kv/kvevent", "internal/kv/feed", "internal/kv/kvindex", "internal/fleet", "bus"},
	"workeragent/kvsource":  {"internal/kv/kvevent"},
	"workeragent/enginesim": {"internal/sim/engine", "internal/prompt", "internal/prompt/openai", "internal/kv/kvevent", "internal/kv/blockhash"},
	"envoy":                 {"child", "internal/wire"},
	"workeragent/engine":    {"child", "internal/fleet"},
	"admin":                 {"internal/fleet", "internal/plan", "internal/route", "internal/kv/feed", "internal/perfmodel"},
}

// anything lists the folders that know everyone.
var anything = []string{"cmd/", "examples/", "test/"}

// impure names what packages under internal/ may not reach for: they do no I/O, and are told
// the time and given their randomness.
var impure = []string{"net", "net/http", "os", "os/exec", "log", "log/slog", "syscall",
	"google.golang.org/grpc", "github.com/prometheus/client_golang/prometheus", "github.com/nats-io/nats.go"}

// forbiddenCalls may not appear in internal/: package and function.
var forbiddenCalls = map[string]string{
	"time.Now": "take now time.Time", "time.Since": "take now time.Time", "time.Sleep": "be pure", "time.After": "be pure",
	"rand.Int": "take a *rand.Rand", "rand.IntN": "take a *rand.Rand", "rand.Float64": "take a *rand.Rand", "rand.Uint64": "take a *rand.Rand",
}

// TestArchitecture reads the sources itself instead of asking "go list", so that the test
// cache sees its inputs and never reports a stale ok.
func TestArchitecture(t *testing.T) {
	documented := map[string]bool{}
	for path, f := range sources(t) {
		from := filepath.ToSlash(filepath.Dir(path))
		documented[from] = documented[from] || f.Doc != nil
		if slices.ContainsFunc(anything, func(p string) bool { return strings.HasPrefix(from+"/", p) }) {
			continue
		}
		for _, spec := range f.Imports {
			imp, _ := strconv.Unquote(spec.Path.Value)
			if to, ours := strings.CutPrefix(imp, module); ours && !mayImport(from, to) {
				t.Errorf("%s: %s must not import %s: see the table in arch_test.go", path, from, to)
			}
			if strings.HasPrefix(from, "internal/") && slices.Contains(impure, imp) {
				t.Errorf("%s: %s is pure and must not import %s", path, from, imp)
			}
		}
		if strings.HasPrefix(from, "internal/") {
			reportImpureCalls(t, path, f)
		}
	}
	for pkg, ok := range documented {
		if !ok {
			t.Errorf("package %s has no package comment: say in one sentence what it is", pkg)
		}
	}
}

func mayImport(from, to string) bool {
	return slices.ContainsFunc(allowed[from], func(rule string) bool {
		below, tree := strings.CutSuffix(rule, "/...")
		return rule == to || tree && strings.HasPrefix(to, below+"/")
	})
}

func reportImpureCalls(t *testing.T, path string, f *ast.File) {
	ast.Inspect(f, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		pkg, ok := sel.X.(*ast.Ident)
		if !ok || pkg.Obj != nil {
			return true
		}
		if instead, bad := forbiddenCalls[pkg.Name+"."+sel.Sel.Name]; bad {
			t.Errorf("%s: %s.%s is not for internal/: %s", path, pkg.Name, sel.Sel.Name, instead)
		}
		return true
	})
}

func sources(t *testing.T) map[string]*ast.File {
	files := map[string]*ast.File{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".") && path != ".") {
			return filepath.SkipDir
		}
		if filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
		files[path] = f
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}
