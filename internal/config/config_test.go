package config_test

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/stator-project/stator/internal/config"
)

// TestParse shows what a person is told about a file. Verbs:
//
//	parse    the file below it; prints "ok" and the named fields, or every problem
func TestParse(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			c, err := config.Parse([]byte(d.Input))
			if err != nil {
				return err.Error() + "\n"
			}
			var b strings.Builder
			fmt.Fprintf(&b, "ok: listen %s, decisionTimeout %s, %d models\n", c.Gateway.Listen, c.Gateway.DecisionTimeout, len(c.Models))
			for _, m := range c.Models {
				fmt.Fprintf(&b, "  %s: %s, block size %d, policy %s, cost %s\n", m.Name, m.Path, m.BlockSize, m.Router.Policy, m.Router.Cost)
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

const docsFile = "../../docs/configuration.md"

// TestDocs keeps docs/configuration.md equal to the comments of the structs. Run it with
// -rewrite to update the file.
func TestDocs(t *testing.T) {
	want := docs(t)
	if flag.Lookup("rewrite").Value.String() == "true" {
		if err := os.WriteFile(docsFile, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(docsFile)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%s is not what the comments in config.go say: run make golden", docsFile)
	}
}

func docs(t *testing.T) string {
	f, err := parser.ParseFile(token.NewFileSet(), "config.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	comments := map[string]map[string]string{} // type, field → text
	ast.Inspect(f, func(n ast.Node) bool {
		ts, ok := n.(*ast.TypeSpec)
		if !ok {
			return true
		}
		if st, ok := ts.Type.(*ast.StructType); ok {
			comments[ts.Name.Name] = map[string]string{}
			for _, field := range st.Fields.List {
				comments[ts.Name.Name][field.Names[0].Name] = strings.Join(strings.Fields(field.Doc.Text()), " ")
			}
		}
		return true
	})
	var b strings.Builder
	b.WriteString("# Configuration\n\nOne YAML file. Unknown keys are errors that name their path; `stator validate -f FILE` checks a file without\nstarting anything. A running Stator reads the file again when it changes; a wrong one leaves the last right one in\nforce. This page is made from the comments in `internal/config` (`make golden`).\n\n| Key | What it says |\n|---|---|\n")
	table(t, &b, comments, reflect.TypeFor[config.Config](), "")
	return b.String()
}

func table(t *testing.T, b *strings.Builder, comments map[string]map[string]string, typ reflect.Type, prefix string) {
	for i := range typ.NumField() {
		field := typ.Field(i)
		text := comments[typ.Name()][field.Name]
		key := prefix + field.Tag.Get("yaml")
		name := field.Tag.Get("yaml")
		if !strings.HasPrefix(text, name+" ") {
			t.Errorf("the comment of %s must begin with %q: people read the YAML name", key, name)
		}
		inner := field.Type
		if inner.Kind() == reflect.Slice {
			inner = inner.Elem()
			key += "[]"
		}
		fmt.Fprintf(b, "| `%s` | %s |\n", key, strings.TrimPrefix(text, name+" "))
		if inner.Kind() == reflect.Struct {
			table(t, b, comments, inner, key+".")
		}
	}
}
