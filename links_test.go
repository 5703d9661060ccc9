package stator_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	link    = regexp.MustCompile(`\[([^\]]*)\]\(([^)\s]+)\)`)
	outside = regexp.MustCompile(`^[a-z]+:`)
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
)

// TestLinks follows the links of all documents to files and headings of the repository.
func TestLinks(t *testing.T) {
	pages := documents(t)
	for path, text := range pages {
		for _, match := range link.FindAllStringSubmatch(text, -1) {
			if outside.MatchString(match[2]) {
				continue
			}
			file, anchor, _ := strings.Cut(match[2], "#")
			target := path
			if file != "" {
				target = filepath.Join(filepath.Dir(path), file)
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s links to %s, which is not there", path, match[2])
			} else if anchor != "" && !anchorsOf(pages[target])[anchor] {
				t.Errorf("%s links to %s, and %s has no such heading", path, match[2], target)
			}
		}
	}
}

// anchorsOf returns the anchors that GitHub gives the headings of a page.
func anchorsOf(text string) map[string]bool {
	anchors := map[string]bool{}
	for _, match := range heading.FindAllStringSubmatch(text, -1) {
		title := link.ReplaceAllString(match[1], "$1")
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
	if n := strings.Count(documents(t)["README.md"], "\n"); n > most {
		t.Errorf("README.md has %d lines, more than %d: move what not everybody needs to docs/README.md", n, most)
	}
}
