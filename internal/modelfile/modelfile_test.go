package modelfile_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stator-project/stator/internal/modelfile"
)

// TestLoadBuiltinModel loads the model that comes with the program.
func TestLoadBuiltinModel(t *testing.T) {
	m, err := modelfile.Load("builtin:sim")
	if err != nil || m.ContextLength() == 0 {
		t.Errorf("%v, %v", m, err)
	}
}

// TestLoadErrorsNameThePath checks the error of each kind of path that holds no model.
func TestLoadErrorsNameThePath(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{"model.bin": "x", "broken.gguf": "not GGUF"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}

	for path, want := range map[string]string{
		"builtin:other":                   `no built-in model "other": use builtin:sim`,
		filepath.Join(dir, "absent"):      "does not exist",
		filepath.Join(dir, "model.bin"):   "neither a folder",
		filepath.Join(dir, "broken.gguf"): "load model " + filepath.Join(dir, "broken.gguf"),
		dir:                               "load model " + dir,
	} {
		if _, err := modelfile.Load(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
}

// TestResolve joins relative paths with the folder, and leaves the others alone.
func TestResolve(t *testing.T) {
	for path, want := range map[string]string{"models/a": "/etc/stator/models/a", "/b": "/b", "builtin:sim": "builtin:sim", "": ""} {
		if got := modelfile.Resolve(path, "/etc/stator"); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
}
