package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	"github.com/stator-project/stator/internal/child"
	"github.com/stator-project/stator/internal/engines"
)

// installedWithin bounds the time in which an interpreter must answer: a cold disk takes seconds.
const installedWithin = 20 * time.Second

// Installed returns an error if the interpreter of an engine is absent, or has no package of the engine. It is for people who wait for a
// first start: an agent tries again by itself, and its log has the engine's own words.
func (l *Launch) Installed(ctx context.Context) error {
	kind, ok := engines.Named(l.Kind)
	if !ok || !kind.RunsInPython() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, installedWithin)
	defer cancel()
	look := exec.CommandContext(ctx, l.Python, "-c", "import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)",
		kind.Launch.Module)
	look.Dir = l.Dir
	look.Env = child.Environment(os.Environ(), l.environment())
	var exit *exec.ExitError
	switch err := look.Run(); {
	case errors.As(err, &exit) && ctx.Err() == nil:
		return fmt.Errorf("engine %s: %s has no package %s: install it there, or name the interpreter that has it with launch[].python "+
			"of a configuration file (stator up --config)", l.Kind, l.Python, kind.Launch.Module)
	case err != nil:
		return fmt.Errorf("engine %s: run %s: %w: name an interpreter that is there with launch[].python of a configuration file "+
			"(stator up --config)", l.Kind, l.Python, err)
	}
	return nil
}
