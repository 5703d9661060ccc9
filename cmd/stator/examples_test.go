package main

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/configfile"
)

// TestDocumentedConfigurations checks every configuration that a reader may copy: those of examples/ and of the
// documents.
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

var yamlRE = regexp.MustCompile("(?s)```yaml\n(apiVersion.*?)```")
