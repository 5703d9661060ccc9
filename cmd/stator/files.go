package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/models"
	"github.com/stator-project/stator/internal/prompt"
)

// readConfig reads and checks a configuration file.
func readConfig(path string) (*config.Config, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	cfg, err := config.Parse(data)
	if err != nil {
		return nil, fmt.Errorf("%s:\n%w", path, err)
	}
	for i := range cfg.Models {
		cfg.Models[i].Path = modelPath(cfg.Models[i].Path, filepath.Dir(path))
		if p := &cfg.Models[i].Profile; *p != "" && !filepath.IsAbs(*p) {
			*p = filepath.Join(filepath.Dir(path), *p)
		}
	}
	return cfg, nil
}

// builtin begins the paths of models that are part of the program.
const builtin = "builtin:"

func modelPath(path, base string) string {
	if strings.HasPrefix(path, builtin) || filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(base, path)
}

// loadModel reads what is needed to prepare a model's prompts.
func loadModel(path string) (*prompt.Model, error) {
	if name, ok := strings.CutPrefix(path, builtin); ok {
		if name != "sim" {
			return nil, fmt.Errorf("there is no built-in model %q: the one there is, is %ssim", name, builtin)
		}
		return named(path)(prompt.Load(models.Sim()))
	}
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("model %s does not exist: name a folder with tokenizer.json in it, a .gguf file, or %ssim", path, builtin)
	case err != nil:
		return nil, fmt.Errorf("open model: %w", err)
	case info.IsDir():
		return named(path)(prompt.Load(os.DirFS(path)))
	case filepath.Ext(path) != ".gguf":
		return nil, fmt.Errorf("model %s is neither a folder with tokenizer.json in it nor a .gguf file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open model: %w", err)
	}
	defer func() { _ = f.Close() }()
	return named(path)(prompt.LoadGGUF(f, info.Size()))
}

// named puts the path into an error of loading.
func named(path string) func(*prompt.Model, error) (*prompt.Model, error) {
	return func(m *prompt.Model, err error) (*prompt.Model, error) {
		if err != nil {
			return nil, fmt.Errorf("load model %s: %w", path, err)
		}
		return m, nil
	}
}

// watchConfig calls apply with every new content of the file that is right, until ctx ends. A
// wrong one is logged, and the last right one stays in force.
func watchConfig(ctx context.Context, path string, log *slog.Logger, apply func(*config.Config) error) error {
	last, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("watch configuration: %w", err)
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		now, err := os.ReadFile(path)
		if err != nil || bytes.Equal(now, last) {
			continue // a file that is being replaced is there again in a moment
		}
		last = now
		cfg, err := readConfig(path)
		if err == nil {
			err = apply(cfg)
		}
		if err != nil {
			log.Error("configuration not changed; the last one stays in force", "err", err)
			continue
		}
		log.Info("configuration changed")
	}
}
