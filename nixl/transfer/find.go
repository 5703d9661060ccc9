package transfer

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/stator-project/stator/nixl/wire"
)

// libraryFile is the name of NIXL's C library, in every package that has it.
const libraryFile = "libnixl_capi.so"

// FindLibrary returns the path of NIXL's C library. Given is a folder, the library, or the folder of a Python environment; empty means
// the environment variable NIXL_LIB_DIR, and after it the active Python environment. An error lists the places that were searched.
func FindLibrary(given string) (string, error) {
	places := []string{given}
	if given == "" {
		places = []string{os.Getenv("NIXL_LIB_DIR"), os.Getenv("VIRTUAL_ENV")}
	}
	for _, place := range places {
		if place == "" {
			continue
		}
		if found := libraryIn(place); found != "" {
			return filepath.Abs(found)
		}
	}
	places = slices.DeleteFunc(places, func(p string) bool { return p == "" })
	return "", fmt.Errorf("no %s in %q: run `pip download --no-deps nixl-cu12==1.5.1`, unzip the wheel, and name the folder that it is in "+
		"by models[].kv.nixlLibrary or NIXL_LIB_DIR", libraryFile, places)
}

// libraryIn looks for the library in a folder: itself, an unpacked wheel, and a Python environment.
func libraryIn(place string) string {
	wheel := filepath.Join(".nixl_cu*.mesonpy.libs", libraryFile)
	for _, pattern := range []string{
		place, filepath.Join(place, libraryFile), filepath.Join(place, wheel),
		filepath.Join(place, "lib", "python*", "site-packages", wheel),
	} {
		found, _ := filepath.Glob(pattern) // a pattern that is malformed finds nothing
		for _, path := range found {
			info, err := os.Stat(path)
			if err == nil && info.Mode().IsRegular() {
				return path
			}
		}
	}
	return ""
}

// FindProgram returns the path of stator-transfer: the given one, or that beside the running program.
func FindProgram(given string) (string, error) {
	path := given
	if path == "" {
		own, err := os.Executable()
		if err != nil {
			return "", err
		}
		path = filepath.Join(filepath.Dir(own), "stator-transfer")
	}
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("stator-transfer: %w: build it with `make build-transfer`", err)
	}
	return filepath.Abs(path)
}

// Network returns UCX's settings for peers behind any network, with RDMA if available: UCX chooses among the transports that detect the
// end of a peer. The environment variables of UCX, such as UCX_TLS and UCX_NET_DEVICES, are inherited from this process.
func Network() wire.Backend {
	return wire.Backend{Plugin: "UCX", Params: map[string]string{"ucx_error_handling_mode": "peer"}}
}
