package modelfile_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stator-project/stator/internal/hub"
	"github.com/stator-project/stator/internal/modelfile"
	"github.com/stator-project/stator/internal/models"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/test/testkit"
)

// TestLoadBuiltinModel loads the model that comes with the program.
func TestLoadBuiltinModel(t *testing.T) {
	m, err := modelfile.Load(t.Context(), "builtin:sim")
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
		if _, err := modelfile.Load(t.Context(), path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
}

// TestLoadFromHub loads the same model from a hub and from its folder, by the settings of the environment.
func TestLoadFromHub(t *testing.T) {
	server := testkit.NewHub(t, testkit.Contents(t, models.Sim()))
	t.Setenv("HF_ENDPOINT", server.URL)
	t.Setenv("HF_HOME", t.TempDir())
	m, err := modelfile.Load(t.Context(), "hf:"+testkit.HubModel)
	if err != nil {
		t.Fatal(err)
	}
	want, err := prompt.Load(models.Sim())
	if err != nil || m.ContextLength() != want.ContextLength() || m.Tokenizer().VocabSize() != want.Tokenizer().VocabSize() {
		t.Errorf("%v: context %d, vocabulary %d", err, m.ContextLength(), m.Tokenizer().VocabSize())
	}

	for path, want := range map[string]string{"hf:acme": "write hf:ORG/MODEL", "hf:acme/other": "download hf:acme/other: "} {
		if _, err := modelfile.Load(t.Context(), path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// recorded notes the names of the files that are read.
type recorded struct {
	fs.FS
	names map[string]bool
}

func (r recorded) Open(name string) (fs.File, error) {
	r.names[name] = true
	return r.FS.Open(name)
}

// TestHubHasTheFilesOfPrompts: every file that is read of a folder is downloaded from a hub.
func TestHubHasTheFilesOfPrompts(t *testing.T) {
	for _, without := range [][]string{nil, {"chat_template.jinja"}} {
		folder := fstest.MapFS{"chat_template.jinja": {Data: []byte("x")}}
		for name, content := range testkit.Contents(t, models.Sim()) {
			folder[name] = &fstest.MapFile{Data: []byte(content)}
		}
		folder["tokenizer_config.json"] = &fstest.MapFile{Data: []byte("{}")}
		folder["config.json"] = &fstest.MapFile{Data: []byte(`{"architectures": ["AcmeForCausalLM"]}`)}
		for _, name := range without {
			delete(folder, name)
		}

		read := recorded{folder, map[string]bool{}}
		if _, err := prompt.Load(read); err != nil {
			t.Fatal(err)
		}
		for name := range read.names {
			if !slices.Contains(hub.Files, name) {
				t.Errorf("%s is read and not downloaded", name)
			}
		}
	}
}

// TestName: a path's last part without its revision or ending.
func TestName(t *testing.T) {
	for path, want := range map[string]string{"/models/big.gguf": "big", "/models/m/": "m", "hf:acme/tiny@v1": "tiny", "hf:acme/x.gguf": "x.gguf"} {
		if got := modelfile.Name(path); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
}

// TestResolve joins relative paths with the folder, and leaves the others alone.
func TestResolve(t *testing.T) {
	for path, want := range map[string]string{"models/a": "/etc/stator/models/a", "/b": "/b", "builtin:sim": "builtin:sim", "hf:a/b": "hf:a/b", "": ""} {
		if got := modelfile.Resolve(path, "/etc/stator"); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
}
