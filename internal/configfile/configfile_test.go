package configfile

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const header = "apiVersion: stator.dev/v1alpha1\nkind: Stator\n"

// TestReadResolvesPaths resolves paths from the folder of the file.
func TestReadResolvesPaths(t *testing.T) {
	path := filepath.Join(t.TempDir(), "stator.yaml")
	text := header + "models: [{name: a, path: m, profile: p}, {name: b, path: 'builtin:sim', profile: /p}, {name: c}]\ndecisions: {log: d}\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}

	cfg, err := Read(path)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Dir(path)
	a, b := cfg.Models[0], cfg.Models[1]
	if a.Path != filepath.Join(dir, "m") || a.Profile != filepath.Join(dir, "p") || b.Path != "builtin:sim" || b.Profile != "/p" || cfg.Models[2].Path != "" ||
		cfg.Decisions.Log != filepath.Join(dir, "d") {
		t.Errorf("%+v, %+v, %+v", a, b, cfg.Decisions)
	}
	if _, err := Read(filepath.Join(dir, "absent")); err == nil || !strings.Contains(err.Error(), "read configuration: open") {
		t.Error(err)
	}
}
