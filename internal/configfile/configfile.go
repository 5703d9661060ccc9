// Package configfile reads the configuration from a file, and follows its changes.
package configfile

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/modelfile"
)

// Read reads and checks a configuration file. Relative paths in it start at the file's folder.
func Read(path string) (*config.Config, error) { return read(path, config.Parse) }

// ReadPartial is Read for a file that may name no model, because models are discovered.
func ReadPartial(path string) (*config.Config, error) { return read(path, config.ParsePartial) }

func read(path string, parse func([]byte) (*config.Config, error)) (*config.Config, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	cfg, err := parse(data)
	if err != nil {
		return nil, fmt.Errorf("%s:\n%w", path, err)
	}

	folder := filepath.Dir(path)
	cfg.ResolveFiles(folder)
	for i := range cfg.Models {
		cfg.Models[i].Path = modelfile.Resolve(cfg.Models[i].Path, folder)
	}
	return cfg, nil
}

// watchEvery is the interval at which the file is read. Polling works with every file system and every way of
// replacing a file.
const watchEvery = time.Second

// Watch calls apply with every new valid content of the file, as read returns it, until ctx ends. Content that is not valid, or
// that apply refuses, is logged, and the last configuration stays in force.
func Watch(ctx context.Context, path string, read func(path string) (*config.Config, error), log *slog.Logger,
	apply func(*config.Config) error) error {
	last, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("watch configuration: %w", err)
	}

	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}

		now, err := os.ReadFile(path)
		if err != nil || bytes.Equal(now, last) {
			continue // a file that is being replaced may be missing for a moment
		}
		last = now
		cfg, err := read(path)
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
