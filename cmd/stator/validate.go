package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/stator-project/stator/admin"
	"github.com/stator-project/stator/extproc"
	"github.com/stator-project/stator/internal/adminclient"
	"github.com/stator-project/stator/internal/cli"
	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/configfile"
	"github.com/stator-project/stator/internal/modelfile"
	"github.com/stator-project/stator/workeragent/engine"
)

const validateAbout = `Checks a configuration file, the model files that it names and the engines that it launches, and
prints everything that is wrong. With --running it also asks a running part whether it has this content in
force, and which changes wait for its restart.`

func runValidate(ctx context.Context, env environment, args []string) error {
	f := cli.New(env.out, env.err, "validate [FILE]", validateAbout)
	file := f.String("config", "", "configuration `file`")
	var running adminclient.Config
	f.StringVar(&running.Address, "running", "", "`address` of the admin port of a running part: ip:port, https://name:port or unix:///path")
	f.StringVar(&running.TokenFile, "admin-token-file", "", "`file` with the token of the admin port")
	f.StringVar(&running.CAFile, "admin-ca", "", "`file` with the CA of an https:// admin port in PEM (default: those of the system)")
	if err := f.ReadWithFile(args, file); err != nil {
		return err
	}
	if *file == "" {
		return f.UsageError("name the configuration file")
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
	if running.Address == "" {
		return nil
	}
	return checkRunning(ctx, env, *file, running)
}

// checkRunning compares the file with the configuration of a running part.
func checkRunning(ctx context.Context, env environment, file string, at adminclient.Config) error {
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	page, err := fetchPage(ctx, at, "/debug/config?format=json")
	if err != nil {
		return err
	}
	var now admin.Config
	if err := json.Unmarshal([]byte(page), &now); err != nil {
		return fmt.Errorf("%s: /debug/config: %w", at.Address, err)
	}

	since := now.Applied.Format(time.RFC3339)
	switch {
	case now.Digest != configfile.Digest(content) && now.Error != "":
		return fmt.Errorf("%s has another content in force, because it refused the present one of %s: %s", at.Address, now.Path, now.Error)
	case now.Digest != configfile.Digest(content):
		return fmt.Errorf("%s has another content in force: it follows %s, since %s", at.Address, now.Path, since)
	case len(now.Pending) > 0:
		return fmt.Errorf("%s has read this content, and needs a restart for %s", at.Address, strings.Join(now.Pending, ", "))
	}
	fmt.Fprintf(env.out, "%s has this content in force since %s\n", at.Address, since)
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
