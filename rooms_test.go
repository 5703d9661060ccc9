package stator_test

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/doc"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "rewrite docs/architecture.md instead of comparing with it")

// floors lists the rooms of the program, the ground floor first. A room is a folder with everything
// below it. It imports rooms of lower floors only, so there is no circle and no arrow upward.
var floors = [][]string{
	{"internal/fleet", "internal/backoff", "internal/envoynames", "internal/grpcserve", "internal/listen", "internal/metric", "internal/models",
		"internal/prefetch", "internal/jsonscan"},
	{"internal/perfmodel", "internal/kv", "internal/child", "internal/enginetls", "internal/engines", "internal/adminclient", "internal/hub", "internal/weights"},
	{"internal/bundle", "internal/prompt", "internal/kvsource", "internal/engineprobe", "internal/plan", "nixl"},
	{"internal/route", "internal/modelfile", "internal/promptlines"},
	{"internal/config", "internal/decisionlog"},
	{"internal/trace", "internal/configfile", "internal/cli"},
	{"internal/sim", "internal/tracefile"},
	{"internal/replay", "internal/shadow", "bus"},
	{"discovery", "xds", "envoy", "wasm", "kvbm"},
	// The planner's connectors read Kubernetes with the client of discovery.
	{"workeragent", "extproc", "planner", "enginesim"},
	{"doctor", "admin", "internal/plansettings"},
	{"internal/advise", "internal/status"},
	{"internal/top"},
	{"cmd"},
}

// The bounds on the share of lines that one room may have.
const (
	mostLines    = 0.25
	mostLinesCmd = 0.05
)

// exemptFromShare lists rooms that may be larger, with the reason.
var exemptFromShare = map[string]string{
	"internal/prompt": "a tokenizer and a template engine, which few people need to open",
}

// room is one folder of production code.
type room struct {
	name    string
	floor   int
	lines   int
	imports map[string]bool // of other rooms
}

// TestRooms checks the floors and the sizes of all rooms, and that docs/architecture.md draws them as
// they are. Run it with -rewrite to draw them again.
func TestRooms(t *testing.T) {
	rooms := readRooms(t)

	total := 0
	for _, r := range rooms {
		total += r.lines
	}
	for _, r := range rooms {
		for to := range r.imports {
			if rooms[to].floor >= r.floor {
				t.Errorf("%s (floor %d) imports %s (floor %d): a room imports lower floors only", r.name, r.floor+1, to, rooms[to].floor+1)
			}
		}

		share := float64(r.lines) / float64(total)
		if _, exempt := exemptFromShare[r.name]; !exempt && share > mostLines {
			t.Errorf("%s has %.0f %% of all lines: divide it", r.name, 100*share)
		}
		if r.name == "cmd" && share > mostLinesCmd {
			t.Errorf("cmd has %.1f %% of all lines, more than %.0f: it is for flags and wiring", 100*share, 100*mostLinesCmd)
		}
	}

	replaceSection(t, "docs/architecture.md", "rooms", drawRooms(rooms, total))
	replaceSection(t, "docs/architecture.md", "packages", listPackages(t))
}

// TestReadmeNamesRooms checks that the map in the README names every room of code, and no folder that is not there. The
// first column has paths, the second also names of folders below them.
func TestReadmeNamesRooms(t *testing.T) {
	named := map[string]bool{}
	isFolder := func(path string) bool {
		info, err := os.Stat(path)
		return err == nil && info.IsDir()
	}
	code := regexp.MustCompile("`([a-z/-]+)`")
	for row := range strings.Lines(sectionOf(t, "README.md", "Map of the packages")) {
		columns := strings.SplitN(row, "|", 4)
		if len(columns) < 4 {
			continue
		}
		paths := code.FindAllStringSubmatch(columns[1], -1)
		for _, path := range paths {
			named[roomOf(path[1])] = true
			if !isFolder(path[1]) {
				t.Errorf("the README names the folder %q, which is not there", path[1])
			}
		}
		for _, name := range code.FindAllStringSubmatch(columns[2], -1) {
			if !slices.ContainsFunc(paths, func(path []string) bool { return isFolder(path[1] + "/" + name[1]) }) {
				t.Errorf("the README names the folder %q, which is not there", name[1])
			}
		}
	}
	for _, names := range floors {
		for _, name := range names {
			if !named[name] {
				t.Errorf("the map of the packages in the README lacks %s", name)
			}
		}
	}
}

// listPackages returns a table of all packages with the first sentences of their comments.
func listPackages(t *testing.T) string {
	t.Helper()
	synopses := map[string]string{}
	for path, f := range sources(t) {
		pkg := filepath.ToSlash(filepath.Dir(path))
		if pkg != "." && f.Doc != nil && !strings.HasPrefix(pkg, "test/") && !strings.HasPrefix(pkg, "examples") && !strings.HasPrefix(pkg, "deploy/") {
			synopses[pkg] = new(doc.Package).Synopsis(f.Doc.Text())
		}
	}

	var b strings.Builder
	b.WriteString("| Package | |\n|---|---|\n")
	for _, pkg := range slices.Sorted(maps.Keys(synopses)) {
		text := strings.TrimPrefix(synopses[pkg], "Package "+filepath.Base(pkg)+" ")
		text = strings.TrimPrefix(text, "Command "+filepath.Base(pkg)+" ")
		fmt.Fprintf(&b, "| `%s` | %s |\n", pkg, strings.ReplaceAll(text, "|", "\\|"))
	}
	return b.String()
}

// readRooms returns the rooms by name. Tests, generated code and the programs under test/ and deploy/ are no rooms.
func readRooms(t *testing.T) map[string]*room {
	t.Helper()

	rooms := map[string]*room{}
	for i, names := range floors {
		for _, name := range names {
			rooms[name] = &room{name: name, floor: i, imports: map[string]bool{}}
		}
	}

	for path, f := range sources(t) {
		pkg := filepath.ToSlash(filepath.Dir(path))
		beside := slices.ContainsFunc([]string{"test", "examples", "deploy"}, func(folder string) bool { return strings.HasPrefix(pkg, folder) })
		if pkg == "." || beside || ast.IsGenerated(f) {
			continue
		}
		r := rooms[roomOf(pkg)]
		if r == nil {
			t.Fatalf("%s is in no room: add its folder to the floors in rooms_test.go", path)
		}
		r.lines += countLines(t, path)

		for _, spec := range f.Imports {
			imported, _ := strconv.Unquote(spec.Path.Value)
			if ours, ok := strings.CutPrefix(imported, module); ok && roomOf(ours) != r.name {
				r.imports[roomOf(ours)] = true
			}
		}
	}
	return rooms
}

// roomOf returns the folder that is a package's room: its first part, or two below internal/.
func roomOf(pkg string) string {
	parts := strings.Split(pkg, "/")
	if parts[0] == "internal" && len(parts) > 1 {
		return "internal/" + parts[1]
	}
	return parts[0]
}

func countLines(t *testing.T, path string) int {
	t.Helper()

	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Count(data, []byte("\n"))
}

// drawRooms returns a diagram and a table of the rooms in Markdown. The diagram leaves out an arrow
// where a longer way leads to the same room, because all 100 and more would hide the shape.
func drawRooms(rooms map[string]*room, total int) string {
	var b strings.Builder

	b.WriteString("```mermaid\nflowchart TD\n")
	for i := range slices.Backward(floors) {
		for _, name := range floors[i] {
			fmt.Fprintf(&b, "  %s[%s]\n", nodeName(name), name)
		}
	}
	for i := range slices.Backward(floors) {
		for _, name := range floors[i] {
			for _, to := range sortedKeys(rooms[name].imports) {
				if !reachesOtherwise(rooms, name, to) {
					fmt.Fprintf(&b, "  %s --> %s\n", nodeName(name), nodeName(to))
				}
			}
		}
	}
	b.WriteString("```\n\n")

	// Shares are whole percents, so that the section does not change with every line of code.
	b.WriteString("| Floor | Room | Share of lines | Imports |\n|---|---|---|---|\n")
	for i := range slices.Backward(floors) {
		for _, name := range floors[i] {
			r := rooms[name]
			fmt.Fprintf(&b, "| %d | `%s` | %.0f %% | %s |\n", i+1, name, 100*float64(r.lines)/float64(total),
				strings.Join(sortedKeys(r.imports), ", "))
		}
	}
	b.WriteString("\nLines of Go, without tests, generated code and the programs under `test/`.\n")
	return b.String()
}

func nodeName(room string) string { return strings.ReplaceAll(room, "/", "_") }

func sortedKeys(set map[string]bool) []string {
	keys := make([]string, 0, len(set))
	for k := range set {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// reachesOtherwise reports whether a way of two or more arrows leads from one room to another.
func reachesOtherwise(rooms map[string]*room, from, to string) bool {
	for next := range rooms[from].imports {
		if next != to && (rooms[next].imports[to] || reachesOtherwise(rooms, next, to)) {
			return true
		}
	}
	return false
}

// replaceSection compares the part of a document between <!-- name:begin --> and <!-- name:end --> with
// want, or replaces it under -rewrite.
func replaceSection(t *testing.T, path, name, want string) {
	t.Helper()

	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(data), "<!-- "+name+":begin -->\n")
	_, tail, ok2 := strings.Cut(rest, "<!-- "+name+":end -->")
	if !ok || !ok2 {
		t.Fatalf("%s has no section between <!-- %s:begin --> and <!-- %s:end -->", path, name, name)
	}

	updated := head + "<!-- " + name + ":begin -->\n" + want + "<!-- " + name + ":end -->" + tail
	switch {
	case updated == string(data):
	case *rewrite:
		if err := os.WriteFile(path, []byte(updated), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("the section %q of %s is out of date: run `make golden` and read the diff", name, path)
	}
}
