// Command runtime is runc, which stands beside it, without seccomp filters. containerd demands a filter for the sandbox of each pod, and a
// runc that is built without the C library of seccomp refuses it.
package main

import (
	"encoding/json"
	"log"
	"os"
	"path/filepath"
	"slices"
	"syscall"
)

func main() {
	if i := slices.Index(os.Args, "--bundle"); i > 0 && i+1 < len(os.Args) {
		if err := withoutFilter(filepath.Join(os.Args[i+1], "config.json")); err != nil {
			log.Fatal(err)
		}
	}
	runc := filepath.Join(filepath.Dir(os.Args[0]), "runc")
	log.Fatal(syscall.Exec(runc, append([]string{runc}, os.Args[1:]...), os.Environ()))
}

// withoutFilter removes the filter from the specification of a container.
func withoutFilter(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var container map[string]any
	if err := json.Unmarshal(text, &container); err != nil {
		return err
	}
	if linux, ok := container["linux"].(map[string]any); ok {
		delete(linux, "seccomp")
	}
	text, err = json.Marshal(container)
	if err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o600)
}
