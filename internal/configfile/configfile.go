// Package configfile reads the configuration from a file, and follows its changes.
//
// # A change
//
// A [Follower] reads the file every second, and handles new content like this:
//
//	the content              the process                          the log
//	-----------------------  -----------------------------------  -------------------------------------------
//	is not valid             keeps its configuration              an error, with the line and what to change
//	is refused by a part     keeps its configuration              an error, with the reason
//	has changed live keys    uses them at once                    the keys
//	has changed other keys   uses them after its next start       the keys, and the parts that must be restarted
//	is the same, and a file  reads that file again                that files were read
//	of API keys has changed
//
// The files of keys are those of [config.Gateway.Watched]. They are not in the configuration, so that no page and no message shows them.
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

// Keys reads the files with which the gateway admits clients. It returns the API keys, and the key set of each issuer in the order of the
// configuration; an issuer without a file has an empty one. An error names the key of the configuration, the file and the mistake, and has
// no API key in it. The control plane calls it: other parts need no access to these files.
func Keys(g *config.Gateway) (keys []config.APIKey, sets []string, err error) {
	if g.Auth.KeysFile != "" {
		data, err := os.ReadFile(g.Auth.KeysFile)
		if err == nil {
			keys, err = config.ParseKeys(data)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("gateway.auth.keysFile %s: %w", g.Auth.KeysFile, err)
		}
	}

	for i := range g.Auth.JWT {
		file, data := g.Auth.JWT[i].JWKSFile, []byte(nil)
		if file != "" {
			data, err = os.ReadFile(file)
			if err == nil {
				err = config.CheckJWKS(data)
			}
		}
		if err != nil {
			return nil, nil, fmt.Errorf("gateway.auth.jwt[%d].jwksFile %s: %w", i, file, err)
		}
		sets = append(sets, string(data))
	}
	return keys, sets, nil
}
