package stator_test

import (
	"go/ast"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const (
	mostFileLines     = 350 // of a file
	mostFunctionLines = 80
	mostFields        = 20 // of a struct
)

// large lists what is larger than the bounds, with the reason why a division would only hide that. Keys are a file, or a folder and the
// name of a function or type.
var large = map[string]string{
	"enginesim.Config":        "configuration: a flag for each field",
	"internal/advise.Options": "configuration: a flag for each field",
	"internal/config.Gateway": "configuration: a key of the file for each field",
	"internal/sim.Config":     "configuration",
	"kvbm/object.Config":      "configuration",
	"xds.Settings":            "configuration",
	"nixl.functions":          "a table of the functions of a C library",
	"internal/fleet.Load":     "its order is the order in which decisions read it, by cache lines",
	"internal/fleet.Worker":   "the facts of a worker, one beside the other as in its lease",
}

// TestSizes bounds what a reader has to keep in mind at once: files, functions and structs of the product. Programs and packages of test/
// are no part of it.
func TestSizes(t *testing.T) {
	used := map[string]bool{}
	check := func(key, what string, has, most int) {
		switch {
		case has <= most:
		case large[key] == "":
			t.Errorf("%s has %d %s, more than %d: divide it by its ideas", key, has, what, most)
		default:
			used[key] = true
		}
	}

	for path, f := range parsed(t) {
		path = filepath.ToSlash(path)
		if strings.HasPrefix(path, "test/") {
			continue
		}
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		check(path, "lines", strings.Count(string(data), "\n"), mostFileLines)

		room := filepath.ToSlash(filepath.Dir(path))
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				lines := positions.Position(n.End()).Line - positions.Position(n.Pos()).Line + 1
				check(room+"."+n.Name.Name, "lines", lines, mostFunctionLines)
			case *ast.TypeSpec:
				if s, ok := n.Type.(*ast.StructType); ok {
					check(room+"."+n.Name.Name, "fields", fields(s), mostFields)
				}
			}
			return true
		})
	}
	for key := range large {
		if !used[key] {
			t.Errorf("%s is not large, or not there: take it off the list in sizes_test.go", key)
		}
	}
}

// fields counts the fields of a struct. An embedded struct counts as one.
func fields(s *ast.StructType) (n int) {
	for _, field := range s.Fields.List {
		n += max(1, len(field.Names))
	}
	return n
}
