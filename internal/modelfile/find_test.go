package modelfile_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stator-project/stator/internal/hub"
	"github.com/stator-project/stator/internal/modelfile"
	"github.com/stator-project/stator/internal/models"
	"github.com/stator-project/stator/test/testkit"
)

// TestFind: the files of a model are found by the report of its engine, on this machine before the hub.
func TestFind(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HF_HOME", home)
	t.Setenv("HF_HUB_CACHE", "")
	t.Setenv("HF_HUB_OFFLINE", "")
	t.Setenv("HF_ENDPOINT", "https://hub.example")
	write := func(folder string) string {
		for name, content := range testkit.Contents(t, models.Sim()) {
			path := filepath.Join(folder, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return folder
	}
	const commit = "0123456789012345678901234567890123456789"
	write(filepath.Join(home, "hub", "models--acme--cached", "snapshots", commit))
	good := write(filepath.Join(t.TempDir(), "good"))
	broken := write(filepath.Join(t.TempDir(), "broken"))
	if err := os.WriteFile(filepath.Join(broken, hub.Files[0]), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}

	for _, c := range []struct{ root, path, why string }{
		{"", "", "does not report"},
		{"builtin:sim", "builtin:sim", "part of this program"},
		{good, good, "on this machine"},
		{broken, "", "load model " + broken},
		{"/elsewhere/acme/model", "", `has loaded them from "/elsewhere/acme/model"`},
		{"acme/other", "hf:acme/other", "are downloaded from https://hub.example"},
		{"/root/.cache/huggingface/hub/models--acme--cached/snapshots/" + commit, "hf:acme/cached@" + commit, "in the cache " + home},
		{"../../etc", "", "not on this machine"},
	} {
		got := modelfile.Find(t.Context(), c.root)
		if got.Path != c.path || !strings.Contains(got.Why, c.why) {
			t.Errorf("%s: %+v, want %s, %s", c.root, got, c.path, c.why)
		}
	}

	t.Setenv("HF_HUB_OFFLINE", "1")
	if got := modelfile.Find(t.Context(), "acme/other"); got.Path != "" || !strings.Contains(got.Why, "forbids to ask the hub") {
		t.Errorf("offline: %+v", got)
	}
}
