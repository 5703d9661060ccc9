package weights

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
)

// ChunkBytes is the size of a chunk: the last one of a file may be smaller. A chunk takes 34 ms at 1 Gbit/s, which is the delay of each
// further node of a chain.
const ChunkBytes = 4 << 20

// The bounds of a manifest. A model of 2 TB has half a million chunks.
const (
	maxFiles         = 1 << 14
	maxChunks        = 1 << 20
	maxName          = 512
	maxManifestBytes = 80 << 20
)

// Sum is a SHA-256.
type Sum [sha256.Size]byte

// String returns the sum in hexadecimal.
func (s Sum) String() string { return hex.EncodeToString(s[:]) }

// MarshalText writes the sum in hexadecimal.
func (s Sum) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, s[:]), nil }

// UnmarshalText reads a sum in lower-case hexadecimal.
func (s *Sum) UnmarshalText(text []byte) error {
	if len(text) != hex.EncodedLen(len(s)) || bytes.ContainsAny(text, "ABCDEF") {
		return fmt.Errorf("%.80q is no SHA-256 in hexadecimal", text)
	}
	_, err := hex.Decode(s[:], text)
	return err
}

// ParseSum reads a sum in lower-case hexadecimal.
func ParseSum(text string) (s Sum, err error) {
	err = s.UnmarshalText([]byte(text))
	return s, err
}

// File is a file of a model. Neither its mode nor its time is copied: engines need neither.
type File struct {
	// Name is the path below the folder, with slashes.
	Name  string `json:"name"`
	Bytes int64  `json:"bytes"`
	// Sums are of the file's chunks.
	Sums []Sum `json:"sums"`
}

// Manifest names the files of a model. Create it with [Scan] or [ParseManifest].
type Manifest struct {
	Files []File

	text   []byte // its encoding
	id     Sum    // of text
	bytes  int64
	chunks []chunk
}

// chunk is a part of a file.
type chunk struct {
	file  int
	at    int64
	bytes int
	sum   Sum
}

// encoding is the JSON form of a manifest. Its identity is that of the text, so a receiver keeps and serves the text as it came.
type encoding struct {
	Version    int    `json:"version"`
	ChunkBytes int    `json:"chunk_bytes"`
	Files      []File `json:"files"`
}

const version = 1

// ParseManifest reads the encoding of a manifest.
func ParseManifest(text []byte) (*Manifest, error) {
	if len(text) > maxManifestBytes {
		return nil, fmt.Errorf("the manifest has more than %d bytes", maxManifestBytes)
	}
	var e encoding
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&e); err != nil {
		return nil, fmt.Errorf("the manifest cannot be read: %w", err)
	}
	if e.Version != version || e.ChunkBytes != ChunkBytes {
		return nil, fmt.Errorf("the manifest has version %d and chunks of %d bytes, and not version %d and %d bytes: use the same release "+
			"on both nodes", e.Version, e.ChunkBytes, version, ChunkBytes)
	}
	return newManifest(e.Files, text)
}

// newManifest checks files, and cuts them into chunks. text is their encoding. The sums must cover each file to its end, so that a manifest
// cannot name bytes that are never compared, and the number of chunks bounds the room on the disk.
func newManifest(files []File, text []byte) (*Manifest, error) {
	if len(files) == 0 || len(files) > maxFiles {
		return nil, fmt.Errorf("the manifest has %d files, and may have 1 to %d", len(files), maxFiles)
	}
	m := &Manifest{Files: files, text: text, id: sha256.Sum256(text)}
	for i, f := range files {
		if !validName(f.Name) {
			return nil, fmt.Errorf("the manifest has the file name %.80q: names are paths below a folder", f.Name)
		}
		if i > 0 && f.Name <= files[i-1].Name {
			return nil, fmt.Errorf("the manifest's files are not sorted by name at %.80q", f.Name)
		}
		if f.Bytes < 0 || f.Bytes > maxChunks*ChunkBytes || int64(len(f.Sums)) != (f.Bytes+ChunkBytes-1)/ChunkBytes ||
			len(m.chunks)+len(f.Sums) > maxChunks {
			return nil, fmt.Errorf("the manifest has %d sums for the %d bytes of %.80q", len(f.Sums), f.Bytes, f.Name)
		}
		for n, sum := range f.Sums {
			at := int64(n) * ChunkBytes
			m.chunks = append(m.chunks, chunk{file: i, at: at, bytes: int(min(ChunkBytes, f.Bytes-at)), sum: sum})
		}
		m.bytes += f.Bytes
	}
	return m, m.checkFolders()
}

// checkFolders refuses a name that is a file and a folder.
func (m *Manifest) checkFolders() error {
	names := map[string]bool{}
	for _, f := range m.Files {
		names[f.Name] = true
	}
	for _, f := range m.Files {
		for folder := path.Dir(f.Name); folder != "."; folder = path.Dir(folder) {
			if names[folder] {
				return fmt.Errorf("the manifest has the file %.80q and files below it", folder)
			}
		}
	}
	return nil
}

// validName reports whether a name is a path below a folder, without hidden parts.
func validName(name string) bool {
	return len(name) <= maxName && fs.ValidPath(name) && name != "." && !strings.HasPrefix(name, ".") &&
		!strings.Contains(name, "/.") && !strings.ContainsAny(name, "\x00\\")
}

// ID returns the identity of the manifest.
func (m *Manifest) ID() Sum { return m.id }

// Bytes returns the size of all files.
func (m *Manifest) Bytes() int64 { return m.bytes }

// Chunks returns the number of chunks.
func (m *Manifest) Chunks() int { return len(m.chunks) }

// Scan makes the manifest of the files of a folder and of the folders below it. Hidden files are left out. Links are followed, because the
// cache of a Hugging Face hub has links. done is called with the bytes that were read since the last call; it may be nil.
func Scan(ctx context.Context, folder string, done func(n int)) (*Manifest, error) {
	files, _, err := list(folder)
	if err != nil {
		return nil, err
	}
	if done == nil {
		done = func(int) {}
	}

	// One goroutine for each processor reads files: storage of nodes with GPUs is faster than one processor computes sums.
	var (
		mu    sync.Mutex
		next  int
		first error
		all   sync.WaitGroup
	)
	take := func() *File {
		mu.Lock()
		defer mu.Unlock()
		if next == len(files) || first != nil {
			return nil
		}
		next++
		return &files[next-1]
	}
	for range min(runtime.GOMAXPROCS(0), len(files)) {
		all.Go(func() {
			buffer := make([]byte, ChunkBytes)
			for f := take(); f != nil; f = take() {
				err := f.sumUp(ctx, folder, buffer, func(n int) {
					mu.Lock()
					defer mu.Unlock()
					done(n)
				})
				if err != nil {
					mu.Lock()
					first = errors.Join(first, err)
					mu.Unlock()
				}
			}
		})
	}
	all.Wait()
	if first != nil {
		return nil, first
	}

	text, err := json.Marshal(encoding{Version: version, ChunkBytes: ChunkBytes, Files: files})
	if err != nil {
		return nil, err
	}
	return newManifest(files, text)
}

// list returns the files of a folder, sorted by name, without their sums, and the time of the newest.
func list(folder string) (files []File, newest time.Time, err error) {
	// A link may lead to a folder above it. The bounds of names and depths end such a walk with an error.
	var walk func(below string) error
	walk = func(below string) error {
		entries, err := os.ReadDir(filepath.Join(folder, filepath.FromSlash(below)))
		if err != nil {
			return err
		}
		for _, entry := range entries {
			name := path.Join(below, entry.Name())
			if strings.HasPrefix(entry.Name(), ".") {
				continue
			}
			info, err := os.Stat(filepath.Join(folder, filepath.FromSlash(name)))
			switch {
			case err != nil:
				return err
			case !validName(name) || strings.Count(name, "/") > maxDepth:
				return fmt.Errorf("%.80q cannot be copied: its name is too long, or too many folders are in each other", name)
			case info.IsDir():
				if err := walk(name); err != nil {
					return err
				}
			case info.Mode().IsRegular():
				if len(files) == maxFiles {
					return fmt.Errorf("%s has more than %d files: name the folder of one model", folder, maxFiles)
				}
				files = append(files, File{Name: name, Bytes: info.Size(), Sums: []Sum{}})
				if info.ModTime().After(newest) {
					newest = info.ModTime()
				}
			}
		}
		return nil
	}

	if err := walk(""); err != nil {
		return nil, newest, fmt.Errorf("read the files of a model: %w", err)
	}
	if len(files) == 0 {
		return nil, newest, fmt.Errorf("%s has no files", folder)
	}
	slices.SortFunc(files, func(a, b File) int { return strings.Compare(a.Name, b.Name) })
	return files, newest, nil
}

// maxDepth bounds the folders in each other, and so a link to a folder above it.
const maxDepth = 16

// sumUp computes the sums of a file's chunks.
func (f *File) sumUp(ctx context.Context, folder string, buffer []byte, done func(int)) error {
	file, err := os.Open(filepath.Join(folder, filepath.FromSlash(f.Name)))
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	for left := f.Bytes; left > 0; {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		piece := buffer[:min(left, ChunkBytes)]
		if _, err := io.ReadFull(file, piece); err != nil {
			return fmt.Errorf("read %s, which has changed or cannot be read: %w", f.Name, err)
		}
		f.Sums = append(f.Sums, sha256.Sum256(piece))
		left -= int64(len(piece))
		done(len(piece))
	}
	return nil
}
