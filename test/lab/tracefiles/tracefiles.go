// Package tracefiles finds the public traces that benchmarks and comparisons play, and fetches them.
//
// Traces are kept outside of the repository: in traces/ of the checkout, where `make traces` puts them, or
// in another folder with the same layout. A command that finds no public trace plays a generated one and
// prints [Hint].
package tracefiles

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// File is a public trace.
type File struct {
	Path    string // within the folder of traces
	URL     string
	SHA256  string
	Licence string
}

// The public traces. URLs name a commit, and SHA256 is checked, so that figures stay comparable.
var (
	Mooncake = File{
		Path:    "mooncake/conversation_trace.jsonl",
		URL:     "https://raw.githubusercontent.com/kvcache-ai/Mooncake/a2a4b18ac537fd798d50e6e9f57031ce86419a37/FAST25-release/traces/conversation_trace.jsonl",
		SHA256:  "b8cbb061a85206d729d91cdc2981f43c9e0d99209dce588d3af5f7934408b9df",
		Licence: "Apache-2.0",
	}
	MooncakeSynthetic = File{
		Path:    "mooncake/synthetic_trace.jsonl",
		URL:     "https://raw.githubusercontent.com/kvcache-ai/Mooncake/a2a4b18ac537fd798d50e6e9f57031ce86419a37/FAST25-release/traces/synthetic_trace.jsonl",
		SHA256:  "bd070915a98fc0ed264d7cfef2ce746002eb3076a695ec31ba2674c0111ec131",
		Licence: "Apache-2.0",
	}
	Azure = File{
		Path: "azure2023/AzureLLMInferenceTrace_conv.csv",
		URL: "https://raw.githubusercontent.com/Azure/AzurePublicDataset/790921015d50dd6aae7f7e47f39ba0e235ad6b08/" +
			"data/AzureLLMInferenceTrace_conv.csv",
		SHA256:  "2f1e5b666d4e3055fdbba98598ce2ec307767b9064e03e2fa46676dbcc7d0bf8",
		Licence: "CC-BY-4.0",
	}
	AzureCode = File{
		Path: "azure2023/AzureLLMInferenceTrace_code.csv",
		URL: "https://raw.githubusercontent.com/Azure/AzurePublicDataset/790921015d50dd6aae7f7e47f39ba0e235ad6b08/" +
			"data/AzureLLMInferenceTrace_code.csv",
		SHA256:  "54e9a6d2a4bd06ba1e060304b900abbc74cbea53de96506e60fe5bb4f2277fb6",
		Licence: "CC-BY-4.0",
	}
)

// Public lists the traces that can be fetched.
var Public = []File{Mooncake, MooncakeSynthetic, Azure, AzureCode}

// Sessions is the folder of agents' sessions within the folder of traces. They cannot be fetched.
const Sessions = "agent/miniswe"

// Dialogues is the folder of dialogues of agents that use tools, within the folder of traces. Each row is one message. They
// cannot be fetched.
const Dialogues = "agent/taubench"

// Folder is the folder into which `make traces` puts the traces.
const Folder = "traces"

// folders are searched in this order, relative to the root of the checkout.
var folders = []string{Folder, "../shared/traces"}

// Hint is a sentence on how to get the public traces.
const Hint = "`make traces` fetches the public traces into traces/."

// Find returns the path of a trace: in the given folder, or if folder is empty in the folders that are usually searched. ok
// is false if none of them has it.
func Find(folder, path string) (found string, ok bool) {
	search := folders
	if folder != "" {
		search = []string{folder}
	}

	for _, dir := range search {
		found = filepath.Join(dir, filepath.FromSlash(path))
		if _, err := os.Stat(found); err == nil {
			return found, true
		}
	}
	return "", false
}

// fetchTimeout bounds the download of one file.
const fetchTimeout = 5 * time.Minute

// Fetch downloads a trace into a folder, unless it is there already. A file with another checksum is
// refused and removed.
func (f File) Fetch(ctx context.Context, folder string) error {
	path := filepath.Join(folder, filepath.FromSlash(f.Path))
	err := f.check(path)
	if err == nil {
		return nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%w: remove it to fetch it again", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}

	partial := path + ".partial"
	defer func() { _ = os.Remove(partial) }()
	if err := download(ctx, f.URL, partial); err != nil {
		return fmt.Errorf("fetch %s: %w: is the network reachable? The file can also be put at %s by hand", f.URL, err, path)
	}
	if err := f.check(partial); err != nil {
		return fmt.Errorf("fetch %s: %w", f.URL, err)
	}
	return os.Rename(partial, path)
}

// download copies a URL into a file. file:// URLs are for tests and for mirrors on this machine.
func download(ctx context.Context, url, path string) error {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	body, err := open(ctx, url)
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }()

	out, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, body)
	return errors.Join(err, out.Close())
}

func open(ctx context.Context, url string) (io.ReadCloser, error) {
	if path, ok := strings.CutPrefix(url, "file://"); ok {
		return os.Open(path)
	}

	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		_ = resp.Body.Close()
		return nil, fmt.Errorf("status %s", resp.Status)
	}
	return resp.Body, nil
}

// check compares the checksum of a file.
func (f File) check(path string) error {
	in, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()

	h := sha256.New()
	if _, err := io.Copy(h, in); err != nil {
		return err
	}
	if sum := hex.EncodeToString(h.Sum(nil)); sum != f.SHA256 {
		return fmt.Errorf("%s has the SHA-256 %s, and the published file has %s", path, sum, f.SHA256)
	}
	return nil
}
