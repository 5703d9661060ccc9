// Package nixl calls NIXL, NVIDIA's library for transfers between the memories of machines, by its C API.
//
// The library is loaded while the program runs, by purego: no C compiler is needed, but a program with this package is linked
// dynamically. Only stator-transfer imports it, see docs/adr/0019-nixl-by-purego.md.
//
// An [Agent] has backends, registered memory and the metadata of its peers. A transfer copies between two [Prepared] lists of
// descriptors:
//
//	lib, err := nixl.Open(path)
//	agent, err := lib.NewAgent(nixl.AgentConfig{Name: "node-1-8f3a"})
//	backend, err := agent.CreateBackend("UCX", nil)
//	err = agent.Register(mapping.At(0, size))
//	metadata, err := agent.LocalMetadata() // for the peer, whose metadata goes to LoadRemote
//
// # Errors
//
// Every error names the call and wraps a [Status]. NIXL has no time limits: a transfer with a peer that is stopped stays in progress for
// ever. After a request was closed, NIXL may still write to its local memory. The only fence is the end of the process.
//
// # Concurrency
//
// An agent and all that belongs to it may be used by one goroutine at a time.
package nixl

import (
	"fmt"
	"os"
	"strings"

	"github.com/ebitengine/purego"
)

// Install states how to get the library, for errors.
const Install = "install NIXL: pip download --no-deps nixl-cu12==1.5.1, unzip the wheel, and pass the folder " +
	".nixl_cu12.mesonpy.libs in it as models[].kv.nixlLibrary or NIXL_LIB_DIR"

// Library is a loaded libnixl_capi.so. It stays loaded until the process ends.
type Library struct {
	f functions
}

// Open loads the library from a path of libnixl_capi.so. An error states what to install.
func Open(path string) (*Library, error) {
	if _, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("open NIXL: %w; %s", err, Install)
	}
	handle, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_GLOBAL)
	if err != nil {
		return nil, fmt.Errorf("load NIXL: %w; %s", err, Install)
	}

	l := &Library{}
	if missing := l.f.bind(handle); len(missing) > 0 {
		return nil, fmt.Errorf("load NIXL: %s lacks %s, so it is of another version; %s", path, strings.Join(missing, ", "), Install)
	}
	return l, nil
}
