package transfer

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestFindLibrary finds the library in each place where packages have it.
func TestFindLibrary(t *testing.T) {
	root := t.TempDir()
	t.Setenv("NIXL_LIB_DIR", "")
	t.Setenv("VIRTUAL_ENV", "")
	if _, err := FindLibrary(""); err == nil || !strings.Contains(err.Error(), "nixl-cu12==1.5.1") {
		t.Errorf("without the library: %v", err)
	}

	for place, folder := range map[string]string{
		"folder": "folder", "wheel": "wheel/.nixl_cu12.mesonpy.libs", "venv": "venv/lib/python3.11/site-packages/.nixl_cu13.mesonpy.libs",
	} {
		want := filepath.Join(root, folder, "libnixl_capi.so")
		if err := os.MkdirAll(filepath.Dir(want), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(want, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := FindLibrary(filepath.Join(root, place))
		if err != nil || got != want {
			t.Errorf("%s: %s, %v", place, got, err)
		}
		got, err = FindLibrary(want)
		if err != nil || got != want {
			t.Errorf("%s: %s, %v", want, got, err)
		}
	}

	t.Setenv("VIRTUAL_ENV", filepath.Join(root, "venv"))
	if got, err := FindLibrary(""); err != nil || !strings.Contains(got, "cu13") {
		t.Errorf("of the active environment: %s, %v", got, err)
	}
	t.Setenv("NIXL_LIB_DIR", filepath.Join(root, "folder"))
	if got, err := FindLibrary(""); err != nil || filepath.Dir(got) != filepath.Join(root, "folder") {
		t.Errorf("of NIXL_LIB_DIR: %s, %v", got, err)
	}
	if _, err := FindLibrary(filepath.Join(root, "absent")); err == nil || !strings.Contains(err.Error(), "absent") {
		t.Errorf("a folder that does not exist: %v", err)
	}
}

func TestFindProgram(t *testing.T) {
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := FindProgram(own); err != nil || got != own {
		t.Errorf("%s, %v", got, err)
	}
	if _, err := FindProgram(""); err == nil || !strings.Contains(err.Error(), "make build-transfer") {
		t.Errorf("beside this test: %v", err)
	}
}
