package main

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// runFolder begins the names of folders for sockets. A process id follows.
const runFolder = "stator-"

// runLock is the file in such a folder that its process has locked. A process id alone does not show whether the
// process lives: containers that share /tmp have different process ids.
const runLock = "lock"

// makeRunFolder makes a private folder for sockets, and removes the folders of processes that were killed.
func makeRunFolder(log *slog.Logger) (string, error) {
	removeStaleFolders(log)
	dir, err := os.MkdirTemp("", runFolder+"new-")
	if err != nil {
		return "", fmt.Errorf("make a folder for sockets: %w", err)
	}
	// The lock is held until the process ends, so the descriptor is never closed. The folder gets its name when it is
	// locked, because others remove folders of that name that are not.
	fd, err := syscall.Open(filepath.Join(dir, runLock), syscall.O_CREAT|syscall.O_RDWR|syscall.O_CLOEXEC, 0o600)
	if err == nil {
		err = syscall.Flock(fd, syscall.LOCK_EX)
	}
	name := fmt.Sprintf("%s%d-%s", runFolder, os.Getpid(), strings.TrimPrefix(filepath.Base(dir), runFolder+"new-"))
	final := filepath.Join(filepath.Dir(dir), name)
	if err == nil {
		err = os.Rename(dir, final)
	}
	if err != nil {
		_ = os.RemoveAll(dir)
		return "", fmt.Errorf("make a folder for sockets: %w", err)
	}
	return final, nil
}

// removeStaleFolders removes the folders of processes that were killed.
func removeStaleFolders(log *slog.Logger) {
	found, err := filepath.Glob(filepath.Join(os.TempDir(), runFolder+"[0-9]*-[0-9]*"))
	if err != nil {
		return // the pattern is valid
	}
	for _, dir := range found {
		if isStale(dir) {
			log.Debug("folder of a killed process removed", "path", dir)
			_ = os.RemoveAll(dir) // not ours, or gone meanwhile
		}
	}
}

// isStale reports whether the process that made a folder has ended.
func isStale(dir string) bool {
	lock, err := os.OpenFile(filepath.Join(dir, runLock), os.O_RDWR, 0)
	if err != nil {
		return false // of another program, or gone meanwhile
	}
	defer func() { _ = lock.Close() }()
	return syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil
}
