package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
)

// runFolder begins the names of folders for sockets. A process id follows.
const runFolder = "stator-"

// makeRunFolder makes a private folder for sockets, and removes those of processes that were killed.
func makeRunFolder(log *slog.Logger) (string, error) {
	removeStaleFolders(log)
	dir, err := os.MkdirTemp("", fmt.Sprintf("%s%d-", runFolder, os.Getpid()))
	if err != nil {
		return "", fmt.Errorf("make a folder for sockets: %w", err)
	}
	return dir, nil
}

// removeStaleFolders removes the folders of processes that were killed.
func removeStaleFolders(log *slog.Logger) {
	found, err := filepath.Glob(filepath.Join(os.TempDir(), runFolder+"[0-9]*-[0-9]*"))
	if err != nil {
		return // the pattern is valid
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
