package hub

import (
	"crypto/sha1" //nolint:gosec // git names its objects by SHA-1
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// repository is the folder of a model in a cache.
type repository string

func (c *Client) repository(ref Ref) repository {
	return repository(filepath.Join(c.Cache, ref.folder()))
}

func (r repository) blob(checksum string) string { return filepath.Join(string(r), "blobs", checksum) }

func (r repository) snapshot(commit string) string {
	return filepath.Join(string(r), "snapshots", commit)
}

func (r repository) file(commit, name string) string {
	return filepath.Join(r.snapshot(commit), filepath.FromSlash(name))
}

func (r repository) ref(revision string) string {
	return filepath.Join(string(r), "refs", filepath.FromSlash(revision))
}

// Cached returns the folder of a model's files in the cache, without a request; empty if the cache does not have them.
func (c *Client) Cached(ref Ref) string {
	repo, commit := c.repository(ref), ref.Revision
	if !commitPattern.MatchString(commit) {
		commit = repo.commit(ref.Revision)
	}
	if commit == "" || !isFile(repo.file(commit, tokenizerFile)) {
		return ""
	}
	return repo.snapshot(commit)
}

// commit returns the commit of a branch or tag when it was last asked for; empty if the cache does not know it.
func (r repository) commit(revision string) string {
	f, err := os.Open(r.ref(revision))
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, 64))
	commit := strings.TrimSpace(string(text))
	if err != nil || !commitPattern.MatchString(commit) {
		return ""
	}
	return commit
}

// setCommit records the commit of a branch or tag.
func (r repository) setCommit(revision, commit string) error {
	if r.commit(revision) == commit {
		return nil // the cache may be read-only
	}
	return replace(r.ref(revision), func(path string) error { return os.WriteFile(path, []byte(commit), 0o644) })
}

// write stores the content of a file under its checksum, after the comparison.
func (r repository) write(checksum string, content io.Reader) error {
	return replace(r.blob(checksum), func(path string) error {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()

		if err := copyBounded(f, content, maxFile); err != nil {
			return err
		}
		if err := f.Sync(); err != nil { // the name must not outlive the content if the machine stops
			return err
		}
		return compare(f, checksum)
	})
}

// link gives a blob its name in a snapshot.
func (r repository) link(checksum, commit, name string) error {
	up := strings.Repeat("../", 2+strings.Count(name, "/"))
	return replace(r.file(commit, name), func(path string) error { return os.Symlink(up+"blobs/"+checksum, path) })
}

// incomplete ends the names of files that are being written. huggingface_hub has one dot less in its names.
const incomplete = ".incomplete"

// replace makes a file under a name of its own and then renames it, so that no process sees a part of it.
func replace(path string, create func(path string) error) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	temporary := fmt.Sprintf("%s.%016x%s", path, rand.Uint64(), incomplete)
	err := create(temporary)
	if err == nil {
		err = os.Rename(temporary, path)
	}
	if err != nil {
		_ = os.Remove(temporary)
	}
	return err
}

// leftoverAge is much longer than a download may take.
const leftoverAge = 24 * time.Hour

// removeLeftovers removes what processes that were killed have left of downloads.
func (r repository) removeLeftovers(now time.Time) {
	folder := filepath.Dir(r.blob("x"))
	entries, _ := os.ReadDir(folder)
	for _, e := range entries {
		ours, _ := path.Match("*.*"+incomplete, e.Name())
		if info, err := e.Info(); ours && err == nil && now.Sub(info.ModTime()) > leftoverAge {
			_ = os.Remove(filepath.Join(folder, e.Name()))
		}
	}
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

// gitDigits is the length of the checksums of git; files in LFS have one of SHA-256.
const gitDigits = 2 * sha1.Size

var checksumPattern = regexp.MustCompile(`^([0-9a-f]{40}|[0-9a-f]{64})$`)

// checksum returns the checksum in an entity tag; empty if it is none.
func checksum(etag string) string {
	text := strings.Trim(strings.TrimPrefix(etag, "W/"), `"`)
	if !checksumPattern.MatchString(text) {
		return ""
	}
	return text
}

// compare reads a file and compares it with the checksum.
func compare(f *os.File, want string) error {
	size, err := f.Seek(0, io.SeekEnd)
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		return err
	}

	var sum hash.Hash
	if len(want) == gitDigits {
		sum = sha1.New() //nolint:gosec // see above
		fmt.Fprintf(sum, "blob %d\x00", size)
	} else {
		sum = sha256.New()
	}
	if _, err := io.Copy(sum, f); err != nil {
		return err
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != want {
		return fmt.Errorf("the content has the checksum %s, and the hub says %s: it was changed on the way", got, want)
	}
	return nil
}
