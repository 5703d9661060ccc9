package configfile

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/test/testkit"
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

// TestWatchAppliesValidChanges applies a change, and logs content that is not valid or is refused.
func TestWatchAppliesValidChanges(t *testing.T) {
	path := filepath.Join(t.TempDir(), "stator.yaml")
	write := func(text string) {
		err := os.WriteFile(path+".new", []byte(text), 0o600)
		if err == nil {
			err = os.Rename(path+".new", path) // or Watch may read a half
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	write(header + "models: [{name: a, path: m}]\n")

	ctx, stop := context.WithCancel(t.Context())
	var log testkit.Log
	applied := make(chan string, 10)
	done := make(chan error, 1)
	go func() {
		done <- Watch(ctx, path, Read, log.Logger(), func(cfg *config.Config) error {
			applied <- cfg.Models[0].Name
			if cfg.Models[0].Name == "refused" {
				return errors.New("no such model")
			}
			return nil
		})
	}()

	// Watch reads the file once before it waits, and what it reads then is no change. So each text is another one.
	changes := 0
	testkit.Eventually(t, "the change is applied", func() bool {
		changes++
		write(fmt.Sprintf("%s# change %d\nmodels: [{name: b, path: m}]\n", header, changes))
		return log.Contains("configuration changed")
	})
	if name := <-applied; name != "b" {
		t.Errorf("applied %s", name)
	}
	write("nonsense")
	testkit.Eventually(t, "the error is logged", func() bool { return log.Contains("configuration not changed") })
	write(header + "models: [{name: refused, path: m}]\n")
	testkit.Eventually(t, "the refusal is logged", func() bool { return log.Contains("no such model") })

	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := Watch(t.Context(), path+".absent", Read, log.Logger(), nil); err == nil {
		t.Error("a missing file is watched")
	}
}
