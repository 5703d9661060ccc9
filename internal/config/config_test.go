package config_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/engines"
)

// TestParse shows the errors and defaults of a file. Verbs:
//
//	parse    the file below it; prints "ok" and the named fields, or every problem
func TestParse(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			c, err := config.Parse([]byte(d.Input))
			if err != nil {
				python := strings.Join(engines.Names((*engines.Kind).RunsInPython), ", ")
				return strings.ReplaceAll(err.Error(), python, "KINDS IN PYTHON") + "\n"
			}
			var b strings.Builder
			fmt.Fprintf(&b, "ok: listen %s, decisionTimeout %s, %d models\n", c.Gateway.Listen, c.Gateway.DecisionTimeout, len(c.Models))
			for _, m := range c.Models {
				fmt.Fprintf(&b, "  %s: %s, block size %d, policy %s, cost %s\n", m.Name, m.Path, m.BlockSize, m.Router.Policy, m.Router.Cost)
				if m.ContextLength > 0 {
					fmt.Fprintf(&b, "    context of %d tokens\n", m.ContextLength)
				}
				for _, a := range m.Adapters {
					fmt.Fprintf(&b, "    adapter %s, in events %s\n", a.Name, a.EngineName)
				}
				for _, l := range m.Launch {
					fmt.Fprintf(&b, "    %d × %s (%s) %v\n", l.Count, l.Engine, l.Role, l.Args)
				}
				for _, w := range m.Workers {
					fmt.Fprintf(&b, "    %s at %s (%s, %s)\n", w.Name, w.Address, w.Engine, w.Role)
				}
			}
			return b.String()
		})
	})
}

// FuzzParse: a file is either refused or valid, never both and never neither.
func FuzzParse(f *testing.F) {
	f.Add([]byte("apiVersion: stator.dev/v1alpha1\nkind: Stator\nmodels: [{name: m, path: p}]\n"))
	f.Add([]byte("a: &a [*a]"))
	f.Add([]byte("models: [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[["))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := config.Parse(data)
		if (c == nil) == (err == nil) {
			t.Fatalf("config %v, error %v", c, err)
		}
		if err == nil && c.Validate() != nil {
			t.Fatal("accepted what Validate refuses")
		}
	})
}

// TestParseBoundsTheFile: a file that is far too large is refused.
func TestParseBoundsTheFile(t *testing.T) {
	if _, err := config.Parse(make([]byte, 5<<20)); err == nil || !strings.Contains(err.Error(), "the limit is") {
		t.Errorf("5 MiB: %v", err)
	}
}
