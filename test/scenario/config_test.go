package scenario

import (
	"os"
	"path/filepath"
	"testing"
)

// configFile writes a configuration; its head is added.
func configFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "stator.yaml")
	if err := os.WriteFile(path, []byte("apiVersion: stator.dev/v1alpha1\nkind: Stator\n"+text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
