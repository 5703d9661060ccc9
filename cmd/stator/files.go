package main

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
		cfg.Models[i].Path = modelfile.Resolve(cfg.Models[i].Path, filepath.Dir(path))
		if p := &cfg.Models[i].Profile; *p != "" && !filepath.IsAbs(*p) {
			*p = filepath.Join(filepath.Dir(path), *p)
		}
	}
	return cfg, nil
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
