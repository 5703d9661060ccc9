package config

import (
	"cmp"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

const docsFile = "../../docs/configuration.md"

const docsHead = `# Configuration

Stator reads one YAML file. An unknown key is an error that names its path. A value of 0 or an empty value counts as
written; a key that is absent, or that has no value, gets its default. A relative path of a file or folder starts at the folder of
this file. ` + "`stator validate --config FILE`" + ` checks a file
without starting anything.

A running part reads the file again when it changes. Values marked *live* then take effect at once. Others take effect when the named
parts are started again. The log shows what has changed and what waits for which restart; ` + "`/readyz`, `/debug/config`, the metric\n`stator_config_pending_restart_keys`, `stator doctor` and `stator validate --running URL`" + ` show it until it is done. A file with an error
changes nothing.

This page is generated from the comments in ` + "`internal/config`" + `: see ` + "`make golden`" + `.

| Key | Type | Default | Reload | Meaning |
|---|---|---|---|---|
`

// TestDocs keeps docs/configuration.md equal to the comments and tags of the structs. Run it with -rewrite
// to update the file.
func TestDocs(t *testing.T) {
	d := docs{t: t, comments: readComments(t)}
	d.text.WriteString(docsHead)
	d.rows(reflect.TypeFor[Config](), "", "live")
	want := d.text.String()
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
		t.Errorf("%s differs from the comments of the configuration's structs: run make golden", docsFile)
	}
}

// readComments returns the comment of every field of the package's structs, by type and field.
func readComments(t *testing.T) map[string]map[string]string {
	paths, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	comments := map[string]map[string]string{}
	for _, path := range paths {
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			ts, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			if st, ok := ts.Type.(*ast.StructType); ok {
				comments[ts.Name.Name] = map[string]string{}
				for _, field := range st.Fields.List {
					for _, name := range field.Names {
						comments[ts.Name.Name][name.Name] = strings.Join(strings.Fields(field.Doc.Text()), " ")
					}
				}
			}
			return true
		})
	}
	return comments
}

// namesFile matches the meaning of a key whose value is a path that Stator opens.
var namesFile = regexp.MustCompile(`^(A|The path of a) (file|folder)\b`)

// docs writes the rows of the table.
type docs struct {
	t        *testing.T
	comments map[string]map[string]string
	text     strings.Builder
}

// rows writes a row for each field of a struct, and for each field of the structs in it. A field reloads
// as the struct does that it belongs to, unless its tag names another way.
func (d *docs) rows(typ reflect.Type, prefix, reload string) {
	defaults := reflect.New(typ).Elem()
	applyDefaults(defaults)
	for i := range typ.NumField() {
		field := typ.Field(i)
		if field.Tag.Get("yaml") == noKey {
			continue
		}
		key := prefix + field.Tag.Get("yaml")
		inner := field.Type
		if inner.Kind() == reflect.Slice {
			inner = inner.Elem()
			key += "[]"
		}

		def, tagged := field.Tag.Lookup("default")
		if !tagged {
			def = printDefault(defaults.Field(i))
		}
		reload := cmp.Or(field.Tag.Get("reload"), reload)
		meaning, kind := d.meaning(typ.Name(), field.Name), typeName(field.Type)
		if field.Tag.Get("file") != "" {
			kind = "path"
		} else if strings.HasSuffix(key, "File") || namesFile.MatchString(meaning) {
			d.t.Errorf("%s is a path: give its field the tag file:\"relative\"", key)
		}
		fmt.Fprintf(&d.text, "| `%s` | %s | %s | %s | %s |\n", key, kind, def, restartOf(reload), meaning)
		if inner.Kind() == reflect.Struct {
			d.rows(inner, key+".", reload)
		}
	}
}

// restartOf is the cell of a tag.
func restartOf(reload string) string {
	if reload == live {
		return live
	}
	return "restart of " + reload
}

// meaning is a field's comment without the name that it begins with: "Listen is the address" becomes "The
// address", and "Index bounds" becomes "Bounds".
func (d *docs) meaning(typ, field string) string {
	text, ok := strings.CutPrefix(d.comments[typ][field], field+" ")
	if !ok {
		d.t.Errorf("the comment of %s.%s must begin with the name of the field", typ, field)
	}
	for _, verb := range []string{"is ", "are "} {
		text = strings.TrimPrefix(text, verb)
	}
	letters := []rune(text)
	letters[0] = unicode.ToUpper(letters[0])
	return strings.ReplaceAll(string(letters), "|", "\\|")
}

func typeName(t reflect.Type) string {
	switch {
	case t == reflect.TypeFor[Duration]():
		return "duration"
	case t == reflect.TypeFor[BlockSize]():
		return "whole number or `auto`"
	case t.Kind() == reflect.Slice:
		return "list"
	case t.Kind() == reflect.Struct, t.Kind() == reflect.Map:
		return "mapping"
	case t.Kind() == reflect.Bool:
		return "boolean"
	case t.Kind() == reflect.Float64:
		return "number"
	case t.Kind() == reflect.String:
		return "string"
	}
	return "whole number"
}

// printDefault prints a default as a file has it; nothing for lists, mappings and empty strings.
func printDefault(v reflect.Value) string {
	const mib = 1 << 20
	switch {
	case v.Type() == reflect.TypeFor[Duration]():
		return "`" + shortDuration(v.Interface().(Duration)) + "`"
	case v.Kind() == reflect.Slice, v.Kind() == reflect.Struct, v.Kind() == reflect.Map:
		return ""
	case v.Kind() == reflect.String && v.String() == "":
		return ""
	case v.Kind() == reflect.Int64 && v.Int() >= mib && v.Int()%mib == 0:
		return fmt.Sprintf("`%d` (%d MiB)", v.Int(), v.Int()/mib)
	}
	return fmt.Sprintf("`%v`", v.Interface())
}

// shortDuration prints "10m0s" as "10m".
func shortDuration(d Duration) string {
	text := d.String()
	if short, ok := strings.CutSuffix(text, "m0s"); ok {
		return short + "m"
	}
	return text
}
