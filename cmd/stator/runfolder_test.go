package main

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
)

// TestRunFolders: a folder stays while its process lives, whatever its process id is here, and goes when that has ended.
func TestRunFolders(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	log := slog.New(slog.DiscardHandler)
	living, err := makeRunFolder(log)
	if err != nil {
		t.Fatal(err)
	}
	// A process in another container finds no process with this id.
	elsewhere := filepath.Join(os.TempDir(), "stator-4194305-1")
	if err := os.Rename(living, elsewhere); err != nil {
		t.Fatal(err)
	}
	ended := filepath.Join(os.TempDir(), "stator-1-1")
	foreign := filepath.Join(os.TempDir(), "stator-1-2")
	for _, dir := range []string{ended, foreign} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(ended, runLock), nil, 0o600); err != nil {
		t.Fatal(err)
	}

	removeStaleFolders(log)
	for dir, want := range map[string]bool{elsewhere: true, ended: false, foreign: true} {
		if _, err := os.Stat(dir); (err == nil) != want {
			t.Errorf("%s: %v", dir, err)
		}
	}
}
