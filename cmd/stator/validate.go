package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/stator-project/stator/extproc"
	"github.com/stator-project/stator/internal/cli"
	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/configfile"
	"github.com/stator-project/stator/internal/modelfile"
	"github.com/stator-project/stator/workeragent/engine"
)

const validateAbout = `Checks a configuration file, the model files that it names and the engines that it launches, and
prints everything that is wrong.`

func runValidate(ctx context.Context, env environment, args []string) error {
	f := cli.New(env.out, env.err, "validate", validateAbout)
	file := f.String("config", "", "configuration `file`")
	if err := f.Read(args); err != nil {
		return err
	}
	if *file == "" {
		return f.UsageError("name the configuration file with --config")
	}
	cfg, err := configfile.Read(*file)
	if err != nil {
		return err
	}

	var errs []error
	for i := range cfg.Models {
		path := cfg.Models[i].Path
		if path == "" {
			continue // its prompts are not read
		}
		if _, err := modelfile.Load(ctx, path); err != nil {
			errs = append(errs, fmt.Errorf("models[%d].path: %w", i, err))
		}
	}
	_, err = extproc.ProfiledSpeeds(cfg)
	errs = append(errs, err, checkLaunches(cfg), checkFiles(cfg))
	if err := errors.Join(errs...); err != nil {
		return err
	}
	fmt.Fprintf(env.out, "%s is valid\n", *file)
	return nil
}

// checkFiles reports which files that processes write are folders.
func checkFiles(cfg *config.Config) error {
	var errs []error
	for _, f := range []struct{ key, path string }{{"decisions.log", cfg.Decisions.Log}, {"planner.log", cfg.Planner.Log}} {
		info, err := os.Stat(f.path) // a path that is empty, or that is not there yet, has an error
		if err == nil && info.IsDir() {
			errs = append(errs, fmt.Errorf("%s: %s is a folder: name a file in it", f.key, f.path))
		}
	}
	return errors.Join(errs...)
}

// checkLaunches reports the errors in the engines that agents start, on any node.
func checkLaunches(cfg *config.Config) error {
	nodes := map[string]bool{}
	for _, m := range cfg.Models {
		for _, l := range m.Launch {
			nodes[l.Node] = true
		}
	}
	var errs []error
	for _, node := range slices.Sorted(maps.Keys(nodes)) {
		wanted, err := engine.Configured(cfg, node)
		errs = append(errs, err)
		for _, l := range wanted {
			errs = append(errs, l.Validate())
		}
	}
	return errors.Join(errs...)
}
