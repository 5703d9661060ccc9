// Package profile has the measured profile that comparisons play: Llama-3.1-8B in FP8 with vLLM on an H200. README.md has its source.
package profile

import (
	"embed"

	"github.com/stator-project/stator/internal/perfmodel"
)

//go:embed *.json
var files embed.FS

// Load returns the profile.
func Load() (*perfmodel.Profile, error) { return perfmodel.LoadProfile(files) }
