package cachesync

import (
	"bytes"
	"cmp"
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var mutantsWanted = flag.Bool("states.mutants", false, "whether TestEachFalseClaimIsFound runs: it compiles the package once for each claim")

// edit replaces a text that occurs once in a file.
type edit struct{ file, old, mutated string }

// falseClaims are situations in which a rank was exact without evidence. Each edit takes the
// check away that prevents one.
var falseClaims = []struct {
	claim string
	edits []edit
}{
	{"a message that could not be read", []edit{
		{"batch.go", "if b.Unknown > 0 {", "if false {"},
	}},
	{"a reconnection without a replay socket", []edit{
		{"reset.go", "		r.gapEnd = 0\n		r.interrupt(Interrupted)", "		r.gapEnd = 0"},
	}},
	{"an agent that is not exact itself", []edit{
		{"feed.go", "case m.State != Exact && !m.CaughtUp, ", "case false, "},
		{"feed.go", "case m.State != Exact && !(m.End && r.resumed):", "case false:"},
		{"batch.go", "case Syncing, Stale:", "case 99:"},
	}},
	{"an agent that has missed batches, and has not caught up", []edit{
		{"report.go", "return r.tail == tailProved && !r.away && r.gapSince.IsZero()", "return true"},
	}},
	{"blocks of another size", []edit{
		{"batch.go", "r.doubt, r.skipped = OtherBlockSize, e.BlockSize\n", "r.skipped = e.BlockSize\n"},
		{"snapshot.go", "return OtherBlockSize, nil", "return Sound, nil"},
	}},
	{"a snapshot without all blocks", []edit{
		{"snapshot.go", "if !s.Complete {", "if false {"},
	}},
	{"a gap that is replayed in part", []edit{
		{"order.go", "if r.next >= r.gapEnd {", "if true {"},
		{"batch.go", "case Exact:\n		r.tail = tailProved", "case Exact, None:\n		r.tail = tailProved"},
	}},
}

// TestEachFalseClaimIsFound puts each false claim back, one at a time, and requires that TestExactMeansEqual finds
// it. It prints the seed of the history that did.
func TestEachFalseClaimIsFound(t *testing.T) {
	if !*mutantsWanted {
		t.Skip("it needs -states.mutants: see make test-states-mutants")
	}
	found := regexp.MustCompile(`history \d+ of \d+: repeat it with \S+`)

	for _, c := range falseClaims {
		overlay := mutate(t, c.edits)
		cmd := exec.CommandContext(t.Context(), "go", "test", "-overlay", overlay, "-run", "^TestExactMeansEqual$",
			"-states.histories=10000", "-states.seed=1", ".")
		out, err := cmd.CombinedOutput()
		history := found.Find(out)
		if err == nil || history == nil || !bytes.Contains(out, []byte(" is exact at ")) {
			t.Errorf("%s: not found (%v):\n%s", c.claim, err, out)
			continue
		}
		t.Logf("%s: %s", c.claim, history)
	}
}

// mutate returns the path of an overlay for the go command in which the files of package feed are edited.
func mutate(t *testing.T, edits []edit) string {
	t.Helper()
	dir := t.TempDir()
	overlay := struct{ Replace map[string]string }{map[string]string{}}

	for _, e := range edits {
		path, err := filepath.Abs(filepath.Join("../../internal/kv/feed", e.file))
		if err != nil {
			t.Fatal(err)
		}
		source, err := os.ReadFile(cmp.Or(overlay.Replace[path], path))
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(source), e.old); n != 1 {
			t.Fatalf("%s has %q %d times: it must be there once", e.file, e.old, n)
		}
		mutated := filepath.Join(dir, e.file)
		if err := os.WriteFile(mutated, []byte(strings.Replace(string(source), e.old, e.mutated, 1)), 0o600); err != nil {
			t.Fatal(err)
		}
		overlay.Replace[path] = mutated
	}

	data, err := json.Marshal(overlay)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
