package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
)

// runFolder begins the names of folders for sockets; a process id follows.
const runFolder = "stator-"

// sweepRunFolders removes what processes left that were killed.
func sweepRunFolders(log *slog.Logger) {
	found, err := filepath.Glob(filepath.Join(os.TempDir(), runFolder+"[0-9]*-[0-9]*"))
	if err != nil {
		return // the pattern is right
	}
	for _, dir := range found {
		var pid, unique int
		if _, err := fmt.Sscanf(filepath.Base(dir), runFolder+"%d-%d", &pid, &unique); err != nil {
			continue
		}
		if err := syscall.Kill(pid, 0); errors.Is(err, syscall.ESRCH) {
			log.Debug("folder of a killed process removed", "path", dir)
			_ = os.RemoveAll(dir) // not ours, or gone meanwhile
		}
	}
}
