package main

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/stator-project/stator/internal/cli"
)

// release is set at build time with -ldflags "-X main.release=v1.2.3".
var release = "dev"

func version() string { return release }

// revision returns the commit that the program was built from, or unknown.
func revision() string {
	info, ok := debug.ReadBuildInfo()
	if ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				return s.Value
			}
		}
	}
	return "unknown"
}

func runVersion(_ context.Context, env environment, args []string) error {
	f := cli.New(env.out, env.err, "version", "Prints the version of this program.")
	asJSON := f.Bool("json", false, "print JSON")
	if err := f.Read(args); err != nil {
		return err
	}
	if *asJSON {
		return json.NewEncoder(env.out).Encode(map[string]string{"version": version(), "revision": revision(), "go": runtime.Version()})
	}
	fmt.Fprintf(env.out, "stator %s (revision %s)\n", version(), revision())
	return nil
}
