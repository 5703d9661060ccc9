package engine_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stator-project/stator/workeragent/engine"
)

// TestInstalled asks interpreters that are scripts: one that has the package, one that has not, and one that is absent.
func TestInstalled(t *testing.T) {
	dir := t.TempDir()
	script := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for python, want := range map[string]string{
		script("with", `test "$3" = vllm`): "",
		script("without", "exit 1"):        "has no package vllm",
		filepath.Join(dir, "absent"):       "name an interpreter that is there",
	} {
		l := engine.Launch{Kind: "vllm", Python: python}
		err := l.Installed(t.Context())
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", filepath.Base(python), err, want)
		}
	}
	sim := engine.Launch{Kind: "sim"}
	if err := sim.Installed(t.Context()); err != nil {
		t.Errorf("a simulated engine needs no interpreter: %v", err)
	}
}
