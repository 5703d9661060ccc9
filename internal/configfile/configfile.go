// Package configfile reads the configuration from a file, and follows its changes.
//
// # A change
//
// A [Follower] reads the file every second. What it does with new content:
//
//	the content              the process                          the log
//	-----------------------  -----------------------------------  -------------------------------------------
//	is not valid             keeps its configuration              an error, with the line and what to change
//	is refused by a part     keeps its configuration              an error, with the reason
//	has changed live keys    uses them at once                    the keys
//	has changed other keys   uses them after its next start       the keys, and the parts that must be restarted
//
// Keys that wait stay in [Status] until the process has been started again, or the file has the old values again. A key that other
// parts read is no concern of this process: it is in the log alone.
package configfile

import (
	"fmt"
	"os"
	"path/filepath"

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
