package stator_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	link    = regexp.MustCompile(`\[[^\]]*\]\(([^)\s]+)\)`)
	outside = regexp.MustCompile(`^[a-z]+:`)
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
)

// TestLinks follows the links of all documents to files and headings of the repository.
func TestLinks(t *testing.T) {
	pages := map[string]string{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".") && path != ".") {
			return filepath.SkipDir
		}
		if filepath.Ext(path) == ".md" {
			data, err := os.ReadFile(path)
			pages[path] = string(data)
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}

	for path, text := range pages {
		for _, match := range link.FindAllStringSubmatch(text, -1) {
			if outside.MatchString(match[1]) {
				continue
			}
			file, anchor, _ := strings.Cut(match[1], "#")
			target := path
			if file != "" {
				target = filepath.Join(filepath.Dir(path), file)
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s links to %s, which is not there", path, match[1])
			} else if anchor != "" && !anchorsOf(pages[target])[anchor] {
				t.Errorf("%s links to %s, and %s has no such heading", path, match[1], target)
			}
		}
	}
}

// anchorsOf returns the anchors that GitHub gives the headings of a page.
func anchorsOf(text string) map[string]bool {
	anchors := map[string]bool{}
	for _, match := range heading.FindAllStringSubmatch(text, -1) {
		title := link.ReplaceAllStringFunc(match[1], func(s string) string { return s[1:strings.Index(s, "]")] })
		anchor := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case strings.ContainsRune("`.,:;!?/()'\"+&%{}[]*|<>=·", r):
				return -1
			}
			return r
		}, strings.ToLower(title))
		anchors[anchor] = true
	}
	return anchors
}

// TestReadmeIsShort: a stranger reads the README to its end.
func TestReadmeIsShort(t *testing.T) {
	const most = 120
	data, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(data), "\n"); n > most {
		t.Errorf("README.md has %d lines, more than %d: move what not everybody needs to docs/README.md", n, most)
	}
}
