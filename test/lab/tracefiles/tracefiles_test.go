package tracefiles

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// file returns a trace of that content, which is served at url.
func file(url, content string) File {
	sum := sha256.Sum256([]byte(content))
	return File{Path: "a/trace.jsonl", URL: url, SHA256: hex.EncodeToString(sum[:])}
}

// TestFetchChecksTheSum fetches a file over HTTP and from this machine, and refuses one of other content.
func TestFetchChecksTheSum(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/trace" {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write([]byte("content"))
	}))
	defer srv.Close()
	local := filepath.Join(t.TempDir(), "local")
	if err := os.WriteFile(local, []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}

	for _, url := range []string{srv.URL + "/trace", "file://" + local} {
		folder := t.TempDir()
		for range 2 { // the second time the file is there
			if err := file(url, "content").Fetch(t.Context(), folder); err != nil {
				t.Fatal(err)
			}
		}
		path, ok := Find(folder, "a/trace.jsonl")
		if data, err := os.ReadFile(path); !ok || err != nil || string(data) != "content" {
			t.Errorf("%s: %q, %v", url, data, err)
		}
	}

	for _, c := range []struct {
		f    File
		want string
	}{
		{file(srv.URL+"/trace", "other"), "has the SHA-256"},
		{file(srv.URL+"/absent", "content"), "status 404 Not Found: is the network reachable?"},
		{file("http://127.0.0.1:1/", "content"), "is the network reachable?"},
	} {
		folder := t.TempDir()
		err := c.f.Fetch(t.Context(), folder)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
		if left, _ := filepath.Glob(filepath.Join(folder, "a", "*")); len(left) > 0 {
			t.Errorf("%s: left %v behind", c.f.URL, left)
		}
	}
}

// TestFetchKeepsOtherFiles does not overwrite a file with another checksum.
func TestFetchKeepsOtherFiles(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "a", "trace.jsonl")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}

	err := file("http://127.0.0.1:1/", "content").Fetch(t.Context(), folder)
	if err == nil || !strings.Contains(err.Error(), "remove it to fetch it again") {
		t.Error(err)
	}
	if data, _ := os.ReadFile(path); string(data) != "mine" {
		t.Errorf("the file is now %q", data)
	}
}

// TestPublicFilesAtHand checks the sums of public traces that are on this machine.
func TestPublicFilesAtHand(t *testing.T) {
	for _, f := range Public {
		for _, dir := range folders {
			path := filepath.Join("../..", dir, f.Path)
			if _, err := os.Stat(path); err != nil {
				continue
			}
			if err := f.check(path); err != nil {
				t.Error(err)
			}
		}
	}
	if _, ok := Find(t.TempDir(), Mooncake.Path); ok {
		t.Error("a trace is found in an empty folder")
	}
}
