package endpoints

import (
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/stator-project/stator/internal/config"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the table in docs/endpoints.md instead of comparing with it")

const (
	page  = "../../docs/endpoints.md"
	file  = "../../docs/results/endpoints.json"
	begin = "<!-- table: made of results/endpoints.json -->\n"
	end   = "<!-- /table -->\n"
)

// TestTable: the table in docs is that of the results. Each path that passes by default has a row, and each row and kind a result.
func TestTable(t *testing.T) {
	columns, err := Read(file)
	if err != nil {
		t.Fatal(err)
	}
	if len(columns) != len(Kinds) {
		t.Errorf("%d kinds of engines have results, want %d", len(columns), len(Kinds))
	}
	rows := map[string]bool{}
	for _, r := range requests {
		rows[r.path] = true
		for _, c := range columns {
			if c.Results[r.row()].Routed == "" {
				t.Errorf("%s, %s: no result: run the scenario TestEndpoints, or make test-endpoints", c.Engine, r.row())
			}
		}
	}
	cfg, err := config.Parse([]byte("apiVersion: stator.dev/v1alpha1\nkind: Stator\nmodels: [{name: sim, path: 'builtin:sim'}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range cfg.Gateway.PassPaths {
		if !rows[path] {
			t.Errorf("%s passes by default, and has no row", path)
		}
	}

	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(text), begin)
	_, after, closed := strings.Cut(rest, end)
	if !found || !closed {
		t.Fatalf("%s has no place for the table", page)
	}
	want := before + begin + "\n" + Table(columns) + "\n" + end + after
	if want == string(text) {
		return
	}
	if !*rewrite {
		t.Fatalf("%s has another table than %s: run make golden and read the diff", page, file)
	}
	if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}
