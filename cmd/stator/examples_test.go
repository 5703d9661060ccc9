package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/configfile"
)

// TestDocumentedConfigurations checks every configuration that a reader may copy: the ones in examples/ and in the documents.
func TestDocumentedConfigurations(t *testing.T) {
	files, err := filepath.Glob("../../examples/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	for _, f := range files {
		if _, err := configfile.Read(f); err != nil {
			t.Error(err)
		}
	}
	documents, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	pages, err := filepath.Glob("../../docs/engines/*.md")
	if err != nil {
		t.Fatal(err)
	}
	documents = append(documents, pages...)
	found := 0
	for _, f := range append(documents, "../../README.md") {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range yamlRE.FindAllSubmatch(text, -1) {
			found++
			if _, err := config.Parse(m[1]); err != nil {
				t.Errorf("%s: %v\n%s", f, err, m[1])
			}
		}
	}
	if found == 0 {
		t.Error("README.md shows no configuration")
	}
}

// TestPagesOfEngines: the page of each engine has the example that it names, word for word but for the comment above it.
func TestPagesOfEngines(t *testing.T) {
	files, err := filepath.Glob("../../examples/engine-*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	for _, f := range files {
		example, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(f), "engine-"), ".yaml")
		page, err := os.ReadFile("../../docs/engines/" + name + ".md")
		if err != nil {
			t.Fatal(err)
		}

		_, body, _ := strings.Cut(string(example), "\n")
		if !strings.Contains(string(page), "(../../examples/"+filepath.Base(f)+")") || !strings.Contains(string(page), "```yaml\n"+body+"```") {
			t.Errorf("docs/engines/%s.md does not name and contain %s", name, f)
		}
	}
}

var yamlRE = regexp.MustCompile("(?s)```yaml\n(apiVersion.*?)```")
