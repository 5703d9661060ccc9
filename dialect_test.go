package stator_test

import (
	"regexp"
	"strings"
	"testing"
)

// dialect lists constructions that take the place of a noun or of "if" and "when". A few are natural English, and many make a text hard
// to read. The bounds are occurrences in 10,000 words; they only fall, until they are 2.
var dialect = []struct {
	instead             string
	pattern             *regexp.Regexp
	documents, comments float64
}{
	{"name the thing", regexp.MustCompile(`\b(is|are|was|were) (what|how|where|which)\b`), 2, 2},
	{"name the thing", regexp.MustCompile(`\b[Ww]hat (is|are|was|were|has|have|it|they|a|an|the)\b`), 2, 2},
	{"write if or when", regexp.MustCompile(`\b[Ww]here (there|none|no|it|they|a|an|the|its)\b`), 2, 2},
	{"repeat the noun", regexp.MustCompile(`\b([Tt]hose|[Tt]hat) of\b`), 2, 2},
}

// fenced matches what is no prose in a document.
var fenced = regexp.MustCompile("(?s)```.*?```")

// TestDialect counts these constructions in documents, and in the comments of production code.
func TestDialect(t *testing.T) {
	var pages, comments strings.Builder
	for _, text := range documents(t) {
		pages.WriteString(fenced.ReplaceAllString(text, ""))
	}
	for _, f := range parsed(t) {
		for _, group := range f.Comments {
			comments.WriteString(group.Text())
		}
	}

	for _, d := range dialect {
		for _, prose := range []struct {
			name, text string
			most       float64
		}{{"documents", pages.String(), d.documents}, {"comments", comments.String(), d.comments}} {
			hits := len(d.pattern.FindAllStringIndex(prose.text, -1))
			rate := 1e4 * float64(hits) / float64(len(strings.Fields(prose.text)))
			if rate > prose.most {
				t.Errorf("%s have %q %.1f times in 10,000 words, more than %.1f: %s", prose.name, d.pattern, rate, prose.most, d.instead)
			}
			if rate < prose.most-1 && prose.most > 2 {
				t.Errorf("%s have %q %.1f times in 10,000 words: lower the bound in dialect_test.go from %.1f", prose.name, d.pattern, rate, prose.most)
			}
		}
	}
}
