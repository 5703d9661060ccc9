package testkit

import (
	"crypto/sha1" //nolint:gosec // git names its objects by SHA-1
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// HubModel is the model of a Hub.
const HubModel = "acme/tiny"

// Hub answers as a Hugging Face hub with the model HubModel, whose only branch is main. tokenizer.json is in LFS, so it comes from a
// second server. It is safe for concurrent use.
type Hub struct {
	// URL is the endpoint.
	URL string
	// Before may answer a request in place of the hub; then it returns true. It is set before the first request.
	Before func(w http.ResponseWriter, r *http.Request) bool

	storage *httptest.Server // for LFS

	mu       sync.Mutex
	commit   string            // guarded by mu
	files    map[string]string // guarded by mu; the content by name
	requests []string          // guarded by mu; the path of each request to either server
	tokens   []string          // guarded by mu; the Authorization of each request to the second server
}

// NewHub starts a hub that has these files, at a commit of the digit 1. It ends with the test.
func NewHub(t testing.TB, files map[string]string) *Hub {
	t.Helper()
	h := &Hub{}
	h.Commit("1", files)
	h.storage = httptest.NewServer(http.HandlerFunc(h.serveStorage))
	endpoint := httptest.NewServer(http.HandlerFunc(h.serve))
	t.Cleanup(h.storage.Close)
	t.Cleanup(endpoint.Close)
	h.URL = endpoint.URL
	return h
}

// Commit moves the branch main to a commit of 40 such digits, which has these files.
func (h *Hub) Commit(digit string, files map[string]string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.commit, h.files = strings.Repeat(digit, 40), files
}

// Requests returns the paths of all requests whose paths contain part.
func (h *Hub) Requests(part string) (found []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range h.requests {
		if strings.Contains(r, part) {
			found = append(found, r)
		}
	}
	return found
}

// StorageTokens returns the Authorization of each request to the second server.
func (h *Hub) StorageTokens() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]string(nil), h.tokens...)
}

// serve is the endpoint: the list of a revision, small files, and redirects to the storage.
func (h *Hub) serve(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	h.requests = append(h.requests, r.URL.EscapedPath())
	commit, files := h.commit, h.files
	h.mu.Unlock()
	if h.Before != nil && h.Before(w, r) {
		return
	}

	revision, isAPI := strings.CutPrefix(r.URL.Path, "/api/models/"+HubModel+"/revision/")
	name, isFile := strings.CutPrefix(r.URL.Path, "/"+HubModel+"/resolve/"+commit+"/")
	content, exists := files[name]
	switch {
	// The list has more members for each file; clients need the name.
	case isAPI && (revision == "main" || revision == commit):
		type sibling struct {
			Name string `json:"rfilename"`
		}
		list := []sibling{{"model.safetensors"}}
		for name := range files {
			list = append(list, sibling{name})
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"sha": commit, "siblings": list})
	// As the real hub does, the redirect has the facts about the file, and the storage none.
	case isFile && exists && name == "tokenizer.json":
		w.Header().Set("X-Repo-Commit", commit)
		w.Header().Set("X-Linked-Etag", fmt.Sprintf(`"%x"`, sha256.Sum256([]byte(content))))
		http.Redirect(w, r, h.storage.URL+"/secret-link/"+commit, http.StatusFound)
	case isFile && exists:
		w.Header().Set("X-Repo-Commit", commit)
		sum := sha1.Sum(fmt.Appendf(nil, "blob %d\x00%s", len(content), content)) //nolint:gosec // see above
		w.Header().Set("ETag", fmt.Sprintf(`"%x"`, sum))
		fmt.Fprint(w, content)
	default:
		w.Header().Set("X-Error-Message", "Entry not found")
		http.Error(w, "", http.StatusNotFound)
	}
}

// serveStorage is the second server. Real ones sign their links, so a link must not be logged.
func (h *Hub) serveStorage(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	h.requests = append(h.requests, r.URL.EscapedPath())
	h.tokens = append(h.tokens, r.Header.Get("Authorization"))
	content := h.files["tokenizer.json"]
	h.mu.Unlock()
	if h.Before != nil && h.Before(w, r) {
		return
	}
	fmt.Fprint(w, content)
}

// Contents returns the files of a folder by name, with slashes in the names of those in folders below it. It is for hubs that
// serve a model of the program.
func Contents(t testing.TB, folder fs.FS) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := fs.WalkDir(folder, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := fs.ReadFile(folder, path)
		files[path] = string(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}
