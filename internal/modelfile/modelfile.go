// Package modelfile loads models from the paths that a configuration or a flag may name: a folder, a
// GGUF file, a model on a Hugging Face hub, or the built-in model of the simulator.
//
// It keeps no state but the cache of the hub. Its functions are safe for concurrent use.
package modelfile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/stator-project/stator/internal/hub"
	"github.com/stator-project/stator/internal/models"
	"github.com/stator-project/stator/internal/prompt"
)

// builtin begins the paths of models that are part of the program.
const builtin = "builtin:"

// Resolve returns the path of a model that a file in the folder base names. Relative paths start at
// base; absolute paths, built-in models, models on a hub and no path stay as they are.
func Resolve(path, base string) string {
	if path == "" || strings.HasPrefix(path, builtin) || hub.IsRef(path) || filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(base, path)
}

// Name returns the name that a model has by its path: the last part, without a revision of a hub and without .gguf.
func Name(path string) string {
	if ref, err := hub.ParseRef(path); err == nil {
		return ref.Model
	}
	return strings.TrimSuffix(filepath.Base(path), ".gguf")
}

// Local returns the path of a model's files on this machine. The files of a model on a hub are downloaded first, with the settings of
// the environment; other paths stay as they are.
func Local(ctx context.Context, path string) (string, error) {
	if !hub.IsRef(path) {
		return path, nil
	}
	ref, err := hub.ParseRef(path)
	if err != nil {
		return "", err
	}
	return hub.New(hub.FromEnvironment(slog.Default())).Fetch(ctx, ref)
}

// Load reads the tokenizer, the chat template and the limits of a model: a folder with
// tokenizer.json, a .gguf file, builtin:sim, or hf:ORG/MODEL, which is downloaded first. Errors name the path.
func Load(ctx context.Context, path string) (*prompt.Model, error) {
	path, err := Local(ctx, path)
	if err != nil {
		return nil, err
	}
	if name, ok := strings.CutPrefix(path, builtin); ok {
		if name != "sim" {
			return nil, fmt.Errorf("there is no built-in model %q: use %ssim", name, builtin)
		}
		return withPath(path)(prompt.Load(models.Sim()))
	}

	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("model %s does not exist: name a folder with tokenizer.json in it, a .gguf file, "+
			"hf:ORG/MODEL, or %ssim", path, builtin)
	case err != nil:
		return nil, fmt.Errorf("open model: %w", err)
	case info.IsDir():
		return withPath(path)(prompt.Load(os.DirFS(path)))
	case filepath.Ext(path) != ".gguf":
		return nil, fmt.Errorf("model %s is neither a folder with tokenizer.json in it nor a .gguf file", path)
	}

	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open model: %w", err)
	}
	defer func() { _ = f.Close() }()

	return withPath(path)(prompt.LoadGGUF(f, info.Size()))
}

// withPath returns a function that adds the path to an error of loading.
func withPath(path string) func(*prompt.Model, error) (*prompt.Model, error) {
	return func(m *prompt.Model, err error) (*prompt.Model, error) {
		if err != nil {
			return nil, fmt.Errorf("load model %s: %w", path, err)
		}
		return m, nil
	}
}
