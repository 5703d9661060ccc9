package stator_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// documents returns the texts of all pages in Markdown, by path.
func documents(t *testing.T) map[string]string {
	t.Helper()
	pages := map[string]string{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".") && path != ".") {
			return filepath.SkipDir
		}
		if filepath.Ext(path) != ".md" {
			return nil
		}
		data, err := os.ReadFile(path)
		pages[path] = string(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return pages
}

// sectionOf returns the text below a heading of the second level, up to the next one.
func sectionOf(t *testing.T, path, heading string) string {
	t.Helper()
	_, rest, found := strings.Cut(documents(t)[path], "\n## "+heading+"\n")
	text, _, ends := strings.Cut(rest, "\n## ")
	if !found || !ends {
		t.Fatalf("%s has no section %q with another one after it", path, heading)
	}
	return text
}
