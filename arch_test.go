// Package stator_test holds the rules of the house that a compiler does not check.
package stator_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stator-project/stator/internal/engines"
)

const module = "github.com/stator-project/stator/"

// allowed lists the packages of ours that each package may import. A package without a row imports
// none of ours. A row that ends in "..." allows the package and everything below it. A package that
// imports more than its row must change the row, with the reason beside it.
var allowed = map[string][]string{
	// Pure packages, lowest first.
	// The facts about kinds of engines name transfers of KV caches and paths of health.
	"internal/engines": {"internal/fleet"},
	// The table of routing hints names the header of each. Readers of JSON share a scanner.
	"internal/prompt/openai":       {"internal/envoynames", "internal/jsonscan"},
	"internal/prompt/chattemplate": {"internal/jsonscan"},
	// The memory of a prompt's prefix holds block hashes beside the tokens they are made of.
	"internal/prompt": {"internal/engines", "internal/kv/blockhash", "internal/prompt/openai", "internal/prompt/vllm", "internal/prompt/chattemplate",
		"internal/prompt/tokenizer"},
	"internal/prompt/vllm": {"internal/prompt/openai"},
	"internal/kv/kvevent":  {"internal/kv/blockhash", "internal/fleet", "internal/jsonscan"},
	// The index and the tokenizer load lines of large tables before they need them.
	"internal/kv/recency":       {"internal/kv/blockhash"},
	"internal/kv/kvindex":       {"internal/kv/blockhash", "internal/fleet", "internal/prefetch"},
	"internal/prompt/tokenizer": {"internal/prefetch", "internal/jsonscan"},
	"internal/kv/feed":          {"internal/kv/blockhash", "internal/kv/kvevent", "internal/kv/kvindex", "internal/fleet"},
	"internal/route/cost":       {"internal/fleet", "internal/perfmodel"},
	"internal/route/pick":       {"internal/fleet", "internal/kv/blockhash", "internal/route/cost"},
	"internal/route/peers":      {"internal/fleet", "internal/kv/blockhash", "internal/route/predict"},
	"internal/route/handoff":    {"internal/fleet", "internal/prompt/openai"},
	"internal/route/sessionid":  {"internal/envoynames", "internal/prompt/openai"},
	"internal/route": {"internal/prompt", "internal/prompt/openai", "internal/kv/blockhash", "internal/kv/kvindex", "internal/fleet",
		"internal/perfmodel", "internal/route/breaks", "internal/route/pick", "internal/route/queue", "internal/route/decision", "internal/route/eligible", "internal/route/learned", "internal/route/predict", "internal/route/programs", "internal/route/request", "internal/route/score", "internal/route/serving"},
	"internal/route/breaks":   {"internal/prompt", "internal/prompt/openai"},
	"internal/route/decision": {"internal/fleet", "internal/kv/blockhash", "internal/prompt", "internal/prompt/openai", "internal/route/cost"},
	"internal/route/eligible": {"internal/fleet", "internal/route/decision", "internal/route/learned", "internal/route/request", "internal/route/serving"},
	"internal/route/learned":  {"internal/fleet", "internal/perfmodel", "internal/route/pick"},
	"internal/route/programs": {},
	"internal/route/predict":  {"internal/fleet", "internal/kv/blockhash", "internal/kv/kvindex"},
	"internal/route/request":  {"internal/fleet", "internal/kv/blockhash", "internal/prompt", "internal/prompt/openai", "internal/route/decision", "internal/route/learned", "internal/route/pick", "internal/route/serving"},
	"internal/route/score":    {"internal/engines", "internal/fleet", "internal/kv/blockhash", "internal/kv/kvindex", "internal/kv/recency", "internal/perfmodel", "internal/route/cost", "internal/route/decision", "internal/route/eligible", "internal/route/learned", "internal/route/pick", "internal/route/request"},
	"internal/route/serving":  {"internal/fleet", "internal/kv/blockhash", "internal/prompt", "internal/prompt/openai", "internal/route/cost", "internal/route/pick", "internal/route/queue"},
	"internal/bundle":         {"internal/adminclient"},
	"internal/weights":        {"internal/backoff"},
	// The faults that the tables show have the form of the doctor's.
	"internal/status": {"doctor", "internal/adminclient", "internal/cli", "internal/metric"},
	// It reads the admin pages as they are written, and shows the same ranks as the status.
	"internal/top":                {"admin/history", "doctor", "internal/cli", "internal/decisionlog", "internal/metric", "internal/status"},
	"internal/advise/dynamograph": {"internal/engines", "internal/fleet"},
	"internal/advise":             {"internal/advise/dynamograph", "internal/config", "internal/engines", "internal/fleet", "internal/hub", "internal/modelfile", "internal/perfmodel", "internal/plan", "internal/plan/capacity", "internal/plan/propose", "internal/plansettings", "internal/sim", "internal/sim/engine", "internal/trace", "internal/tracefile", "workeragent/engine"},
	"internal/plansettings":       {"internal/config", "internal/engines", "internal/fleet", "internal/modelfile", "internal/perfmodel", "internal/plan", "internal/plan/capacity", "workeragent/engine"},
	// The configuration's defaults and checks are those of the packages that use the values.
	"internal/config": {"internal/engines", "internal/fleet", "internal/perfmodel", "internal/plan", "internal/plan/forecast", "internal/kv/kvindex", "internal/kv/drift", "internal/route", "internal/route/cost",
		"internal/route/pick", "internal/route/queue", "internal/route/serving", "internal/route/sessionid"},
	// It plays a log with a policy of its own.
	"internal/shadow":        {"internal/decisionlog", "internal/route/pick", "internal/sim", "internal/trace"},
	"internal/plan/capacity": {"internal/fleet", "internal/perfmodel"},
	// A log has the plans and everything that they are made from.
	"internal/plan/planlog": {"internal/fleet", "internal/perfmodel", "internal/plan"},
	"internal/plan/propose": {"internal/engines", "internal/fleet", "internal/perfmodel", "internal/plan/capacity"},
	"internal/plan":         {"internal/fleet", "internal/perfmodel", "internal/plan/..."},
	"internal/decisionlog":  {"internal/fleet", "internal/kv/blockhash", "internal/route/cost", "internal/route/decision"},
	"internal/sim/engine":   {"internal/fleet", "internal/kv/blockhash", "internal/kv/kvevent", "internal/kv/onboard", "internal/perfmodel"},
	"internal/trace":        {"internal/decisionlog"},
	// The simulation runs the real router on the real index, with the events of its engines.
	"internal/sim": {"internal/plan", "internal/trace", "internal/sim/engine", "internal/route/...", "internal/route", "internal/kv/feed",
		"internal/kv/kvindex", "internal/kv/kvevent", "internal/fleet", "internal/perfmodel", "internal/prompt"},
	// The flags of a run are settings of the simulation: timing of engines, cost functions, policies and queues.
	"internal/replay": {"internal/sim", "internal/sim/engine", "internal/trace", "internal/perfmodel", "internal/route/cost", "internal/route/pick",
		"internal/route/queue", "internal/fleet", "internal/plan", "internal/plan/capacity", "internal/plan/forecast"},

	// Libraries that do I/O, see doesIO.
	"internal/kvsource": {"internal/backoff", "internal/engines", "internal/kv/kvevent"},
	// Agents and routers publish the same metrics of the sources that they read.
	"internal/kvsource/sources": {"internal/kvsource", "internal/metric"},
	"internal/engineprobe":      {"internal/enginetls", "internal/engines", "internal/envoynames", "internal/fleet", "internal/metric"},
	// Files are read again as the files of listeners are.
	"internal/enginetls": {"internal/fleet", "internal/listen"},
	"internal/child":     {"internal/backoff"},
	"internal/hub":       {"internal/backoff"},
	// Router, doctor and commands load models from the same paths.
	// The command line names the nearest flag with the edit distance of the configuration.
	"internal/cli":         {"internal/config"},
	"internal/promptlines": {"internal/kv/blockhash", "internal/prompt", "internal/prompt/openai", "internal/prompt/tokenizer"}, // bounds of texts
	"internal/configfile":  {"internal/config", "internal/metric", "internal/modelfile"},
	"internal/tracefile":   {"internal/modelfile", "internal/trace"},
	"internal/modelfile":   {"internal/hub", "internal/models", "internal/prompt"},
	// Commands read a token as the port does that asks for it.
	"internal/adminclient": {"internal/listen"},

	// What connects processes.
	// The server reads its certificate again as the other listeners do.
	"bus": {"bus/busv1", "internal/backoff", "internal/listen", "internal/metric", "internal/fleet", "internal/kv/blockhash", "internal/kv/feed", "internal/kv/kvevent", "internal/route/peers", "internal/plan"},
	// Plans set weights and drains of workers.
	"discovery/kubernetes": {"internal/enginetls", "internal/backoff", "internal/engines", "internal/engineprobe", "internal/fleet", "internal/listen", "internal/metric"},
	"discovery":            {"internal/enginetls", "internal/backoff", "internal/engineprobe", "internal/fleet", "internal/metric", "internal/plan", "bus"},
	// The page of decisions shows them as the decision log has them, and those of the agent and of Envoys their status.
	// The stores of KV blocks are shown and changed by their keys.
	"admin": {"admin/console", "admin/history", "internal/enginetls", "discovery", "extproc/accesslog", "extproc/emitters", "internal/configfile", "internal/engines", "workeragent", "kvbm", "internal/kv/block", "kvbm/direct", "kvbm/node", "kvbm/peers", "kvbm/pool", "kvbm/session", "xds", "internal/kv/kvindex", "internal/kvsource", "internal/decisionlog", "internal/fleet", "internal/plan", "internal/route", "internal/route/peers", "internal/kv/drift", "internal/kv/feed", "internal/perfmodel", "internal/route/decision", "internal/route/learned"},

	// The router process.
	"extproc": {"internal/enginetls", "extproc/...", "bus", "discovery", "internal/backoff", "internal/config", "internal/engineprobe", "internal/enginetls", "internal/grpcserve", "internal/hub", "internal/modelfile", "internal/decisionlog", "internal/fleet", "internal/kv/...",
		// It compares the fleet with the plan.
		"internal/plan",
		"internal/kvsource/sources", "internal/metric", "internal/perfmodel", "internal/prompt", "internal/route", "internal/route/..."},
	// Requests to engines: those to prefill workers, and those that Envoy cannot send twice.
	"extproc/prefill": {"internal/enginetls", "extproc/spans", "internal/fleet", "internal/metric", "internal/perfmodel", "internal/route", "internal/route/handoff", "internal/route/decision", "internal/route/request",
		// Engines get the session of the client.
		"internal/envoynames", "internal/route/sessionid"},
	"extproc/relay": {"internal/enginetls", "extproc/exchange", "extproc/migrate", "extproc/prefill", "extproc/spans", "extproc/speculate", "internal/envoynames", "internal/metric"},
	// Streams are read without decoding them, and bodies as the router reads them.
	"extproc/migrate": {"internal/jsonscan", "internal/prompt/openai"},
	// It reads answers, makes the prompt that comes next, and sends it as a prefill worker's is sent.
	"extproc/speculate": {"internal/backoff", "internal/enginetls", "internal/envoynames", "internal/jsonscan", "internal/metric", "internal/prompt", "internal/prompt/openai", "internal/route", "internal/route/decision", "internal/route/request", "internal/route/sessionid", "extproc/prefill"},
	"extproc/stream":    {"extproc/accesslog", "extproc/exchange", "extproc/messages", "internal/envoynames", "internal/grpcserve", "internal/metric", "internal/route/sessionid"},
	// Kinds of engines differ in whether their streams can be continued.
	"extproc/exchange": {"internal/backoff", "extproc/migrate", "extproc/prefill", "extproc/quota", "extproc/spans", "extproc/speculate", "internal/engines", "internal/envoynames", "internal/fleet", "internal/metric", "internal/prompt", "internal/prompt/openai", "internal/route",
		"internal/route/handoff", "internal/route/pick", "internal/route/decision", "internal/route/request", "internal/route/sessionid"},
	// Bookings end with the result of the request, whose type is the router's.
	"extproc/accesslog": {"internal/backoff", "extproc/exchange", "extproc/messages", "internal/envoynames", "internal/metric", "internal/route", "internal/route/pick"},
	// It counts bookings that have ended, with the facts of both.
	"extproc/answers":     {"extproc/messages", "internal/fleet", "internal/metric", "internal/route/decision", "internal/route/pick"},
	"extproc/poolmetrics": {"internal/fleet", "internal/metric", "internal/route"},
	// Trace contexts are read from headers without a copy.
	"extproc/messages":  {"extproc/spans", "internal/envoynames"},
	"extproc/spans":     {"internal/metric"},
	"extproc/cachesync": {"internal/backoff", "internal/fleet", "internal/kv/feed", "internal/metric"},
	// Decisions take the blocks of caches outside engines by the places from which ranks can load them.
	"extproc/emitters": {"internal/backoff", "internal/fleet", "internal/kv/feed", "internal/kv/kvevent", "internal/kv/kvindex", "internal/kvsource", "internal/kvsource/sources", "internal/metric", "internal/route/score"},
	"extproc/sockets":  {"internal/enginetls", "internal/backoff", "internal/engineprobe", "internal/engines", "internal/metric", "internal/kvsource", "internal/kvsource/sources", "internal/fleet", "internal/kv/feed", "internal/kv/kvevent"},

	// The other processes.
	"planner":                       {"internal/backoff", "internal/plan", "internal/perfmodel", "internal/plan/...", "internal/fleet", "internal/metric", "internal/route/peers", "bus"},
	"planner/connectors/kubernetes": {"discovery/kubernetes", "internal/backoff", "internal/fleet", "internal/metric", "internal/plan"},
	"planner/connectors/local":      {"internal/plan", "internal/fleet", "bus"},
	"planner/connectors/virtual":    {"internal/plan", "bus"},
	"planner/prometheus":            {"internal/plan"},
	"xds":                           {"internal/fleet", "internal/envoynames", "internal/metric"},
	"envoy":                         {"internal/child", "internal/envoynames"},
	// The Wasm filter connects the keys with Envoy, and the header's name is that of Envoy's configuration.
	"wasm/filter": {"wasm/affinity", "internal/envoynames"},
	// The agent keeps an index of its engines' caches, from which a router that starts late gets a snapshot.
	"workeragent": {"internal/enginetls", "workeragent/...", "internal/backoff", "internal/child", "internal/engines", "internal/engineprobe", "internal/kvsource", "internal/kvsource/sources", "internal/kv/kvevent", "internal/kv/feed", "internal/kv/kvindex",
		"internal/fleet", "internal/metric", "bus"},
	// The store decides by the same rule as the simulator, and names tiers as routers do.
	"kvbm":         {"internal/fleet", "internal/kv/onboard", "internal/kv/block", "kvbm/disk", "kvbm/object", "kvbm/pool"},
	"kvbm/node":    {"internal/backoff", "internal/fleet", "internal/kv/block", "internal/metric", "kvbm", "kvbm/..."},
	"kvbm/session": {"internal/backoff", "internal/fleet", "kvbm", "internal/kv/block", "kvbm/host"},
	"kvbm/pool":    {"internal/kv/block"},
	// Pauses after failed writes grow as those of other processes do.
	"kvbm/disk": {"internal/backoff", "internal/kv/block", "kvbm/pool"},
	// Nodes find each other's stores by the bus.
	"kvbm/announce": {"bus", "kvbm/peers"},
	// A pause between attempts grows as everywhere.
	"kvbm/peers":  {"internal/kv/block", "kvbm/stream", "internal/backoff"},
	"kvbm/object": {"internal/kv/block", "internal/backoff"},
	// Copies by NIXL run its child beside the stream, which carries what nodes have to exchange.
	"kvbm/direct": {"internal/backoff", "internal/kv/block", "kvbm/host", "kvbm/stream", "nixl/transfer", "nixl/wire"},
	// An agent's child has NIXL and the protocol, and the agent only the protocol: transfer must not import engine or nixl.
	"nixl/wire":     {"internal/kv/block"},
	"nixl/serve":    {"nixl/wire"},
	"nixl/engine":   {"nixl", "nixl/serve", "nixl/wire"},
	"nixl/transfer": {"internal/child", "internal/kv/block", "nixl/wire"},
	"kvbm/stream":   {"internal/kv/block", "internal/backoff"},
	// Engines take the names of models on a hub without the prefix.
	// Its interpreter runs with the variables of a child.
	"workeragent/engine": {"internal/child", "internal/config", "internal/engines", "internal/fleet", "internal/hub"},
	"enginesim":          {"internal/backoff", "internal/perfmodel", "internal/kv/block", "kvbm/session", "internal/fleet", "internal/sim/engine", "internal/prompt", "internal/prompt/openai", "internal/kv/kvevent", "internal/kv/blockhash"},
	// The doctor tokenizes with the configured models, reads the metrics of engines and routers, and shows the address of
	// the bus without its login. It compares an Envoy with the names and versions of the configurations that xds writes.
	// It reads the pools of a cluster, and the names of transfers that need the relay.
	"doctor": {"internal/enginetls", "bus", "discovery/kubernetes", "internal/route/handoff", "xds", "internal/adminclient", "internal/backoff", "internal/config", "internal/engines", "internal/engineprobe", "internal/envoynames", "internal/fleet", "internal/kvsource", "internal/kv/...", "internal/metric", "internal/modelfile", "internal/prompt",
		"internal/prompt/openai"},
}

// anything lists the folders that may import every package.
var anything = []string{"cmd/", "examples/", "test/"}

// doesIO lists the packages under internal/ that may do I/O and read the clock: libraries that more
// than one process needs. All others are pure.
var doesIO = []string{"internal/adminclient", "internal/cli", "internal/configfile", "internal/listen", "internal/tracefile", "internal/backoff", "internal/child", "internal/engineprobe", "internal/enginetls", "internal/grpcserve", "internal/hub", "internal/kvsource", "internal/kvsource/sources", "internal/metric", "internal/modelfile", "internal/models", "internal/plansettings", "internal/advise", "internal/bundle", "internal/status", "internal/top", "internal/weights"}

// impure lists the imports that a pure package must not have.
var impure = []string{"net", "net/http", "os", "os/exec", "log", "log/slog", "syscall",
	"google.golang.org/grpc", "github.com/prometheus/client_golang/prometheus", "github.com/nats-io/nats.go"}

// neutral lists the packages that must work behind any door to Envoy, and noTransport the modules whose packages these must
// not import.
var (
	neutral     = []string{"extproc/exchange"}
	noTransport = []string{"google.golang.org/grpc", "google.golang.org/protobuf", "github.com/envoyproxy/go-control-plane"}
)

// forbiddenCalls may not appear in internal/: package and function.
var forbiddenCalls = map[string]string{
	"time.Now": "take now time.Time", "time.Since": "take now time.Time", "time.Sleep": "be pure", "time.After": "be pure",
	"rand.Int": "take a *rand.Rand", "rand.IntN": "take a *rand.Rand", "rand.Float64": "take a *rand.Rand", "rand.Uint64": "take a *rand.Rand",
}

// TestArchitecture reads the sources itself instead of asking "go list", so that the test
// cache sees its inputs and never reports a stale ok.
func TestArchitecture(t *testing.T) {
	documented := map[string]bool{}
	used := map[string]map[string]bool{} // the rules of each package that an import of it needs
	for path, f := range sources(t) {
		from := filepath.ToSlash(filepath.Dir(path))
		documented[from] = documented[from] || f.Doc != nil
		if slices.ContainsFunc(anything, func(p string) bool { return strings.HasPrefix(from+"/", p) }) {
			continue
		}
		for _, spec := range f.Imports {
			imp, _ := strconv.Unquote(spec.Path.Value)
			if to, ours := strings.CutPrefix(imp, module); ours {
				rule, ok := ruleFor(from, to)
				if !ok {
					t.Errorf("%s: %s must not import %s: see the table in arch_test.go", path, from, to)
				}
				if used[from] == nil {
					used[from] = map[string]bool{}
				}
				used[from][rule] = true
			}
			if isPure(from) && slices.Contains(impure, imp) {
				t.Errorf("%s: %s is pure and must not import %s", path, from, imp)
			}
			if slices.Contains(neutral, from) && slices.ContainsFunc(noTransport, func(m string) bool { return strings.HasPrefix(imp, m) }) {
				t.Errorf("%s: %s knows no transport and must not import %s", path, from, imp)
			}
		}
		if isPure(from) {
			reportImpureCalls(t, path, f)
		}
	}
	for pkg, ok := range documented {
		if !ok {
			t.Errorf("package %s has no package comment: say in one sentence what it is", pkg)
		}
	}
	for from, rules := range allowed {
		for _, rule := range rules {
			if !used[from][rule] {
				t.Errorf("%s imports no package by the rule %q: delete it from the table in arch_test.go", from, rule)
			}
		}
	}
}

// engineWords lists the files, or folders of files, that have the name of a kind of engine as a text for another reason.
var engineWords = map[string]string{
	"cmd/stator/main.go":             "a command",
	"cmd/stator/sim.go":              "a command and its defaults",
	"enginesim/describe.go":          "a member of vLLM's answers",
	"internal/engines/":              "the kinds themselves",
	"internal/kv/kvevent/dialect.go": "dialects of events",
	"internal/modelfile/":            "a built-in model",
	"internal/models/":               "a folder",
	"internal/route/cost/":           "a cost function",
	"internal/sim/":                  "a model and a worker",
	"test/":                          "configurations of programs beside the product",
	"workeragent/engine/kinds.go":    "a command",
}

// TestEnginesHaveOnePlace refuses names of engines in code: a part asks package engines for a fact, or names a kind by its variable.
func TestEnginesHaveOnePlace(t *testing.T) {
	used := map[string]bool{}
	inspect(t, func(at token.Position, n ast.Node) {
		text, ok := n.(*ast.BasicLit)
		if !ok || text.Kind != token.STRING {
			return
		}
		word, _ := strconv.Unquote(text.Value)
		if _, isEngine := engines.Named(word); !isEngine {
			return
		}
		for place := range engineWords {
			if strings.HasPrefix(at.Filename, place) {
				used[place] = true
				return
			}
		}
		t.Errorf("%s: %s is the name of an engine: use its variable in package engines, or give Kind a field for the fact", at, text.Value)
	})
	for place := range engineWords {
		if !used[place] {
			t.Errorf("%s names no engine: delete it from the list in arch_test.go", place)
		}
	}
}

// TestProgramIsStatic checks that stator does not contain purego: a program with it needs glibc where it runs, see
// docs/adr/0019-nixl-by-purego.md. All sources are read as well, so that the test's result is cached until one changes.
func TestProgramIsStatic(t *testing.T) {
	sources(t)
	const dynamic = "github.com/ebitengine/purego"
	out, err := exec.Command("go", "list", "-deps", "./cmd/stator").Output()
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(out), module+"internal/cli\n") {
		t.Fatalf("go list printed no list:\n%s", out)
	}
	for imported := range strings.Lines(string(out)) {
		if strings.HasPrefix(imported, dynamic) {
			t.Errorf("cmd/stator imports %s, which only stator-transfer may: bin/stator has to be linked statically", strings.TrimSpace(imported))
		}
	}
}

// TestProgramSize builds stator as `make build` does. A dependency that is much larger than what it is for shows here: see
// docs/adr/0004-dependencies.md.
func TestProgramSize(t *testing.T) {
	sources(t)
	const most = 52 << 20
	path := filepath.Join(t.TempDir(), "stator")
	build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", path, "./cmd/stator")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Size() > most {
		t.Errorf("the program has %d MiB, more than %d: look at what the last change imports", info.Size()>>20, most>>20)
	}
}

func isPure(pkg string) bool {
	return strings.HasPrefix(pkg, "internal/") && !slices.Contains(doesIO, pkg)
}

// ruleFor returns the rule by which a package may import another one.
func ruleFor(from, to string) (rule string, ok bool) {
	for _, rule := range allowed[from] {
		below, tree := strings.CutSuffix(rule, "/...")
		if rule == to || tree && strings.HasPrefix(to, below+"/") {
			return rule, true
		}
	}
	return "", false
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

// positions has the positions of all files that [sources] returns.
var positions = token.NewFileSet()

// sources returns the files that are no tests, by path. They are parsed once for all tests.
func sources(t *testing.T) map[string]*ast.File {
	t.Helper()
	files, err := parseAll()
	if err != nil {
		t.Fatal(err)
	}
	return files
}

var parseAll = sync.OnceValues(func() (map[string]*ast.File, error) {
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
		f, err := parser.ParseFile(positions, path, nil, parser.ParseComments)
		files[path] = f
		return err
	})
	return files, err
})
