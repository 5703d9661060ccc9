package weights

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"
)

const (
	// manifestName is the file in a folder that has the manifest. It is hidden, so it is no part of the model.
	manifestName = ".stator-weights.json"
	// partial ends the name of an incomplete folder.
	partial = ".partial"
)

// Folder has the files of a manifest, or a part of them. Create it with [Open] or [Begin].
type Folder struct {
	manifest *Manifest

	mu      sync.RWMutex
	dir     string        // guarded by mu; it changes when the folder is complete
	has     []bool        // guarded by mu; by chunk
	left    int           // guarded by mu; chunks that are missing
	way     []string      // guarded by mu; the nodes from one with all files to this one; empty if no chunks come
	changed chan struct{} // guarded by mu; closed and replaced when a chunk or a way comes
}

// Size returns the bytes of the files in a folder.
func Size(dir string) (n int64, err error) {
	files, _, err := list(dir)
	for _, f := range files {
		n += f.Bytes
	}
	return n, err
}

// Open returns a folder with all files. It uses the manifest that was written there if no file is newer, and else reads all files. done is
// called with the bytes that were read since the last call; it may be nil.
func Open(ctx context.Context, dir string, done func(n int)) (*Folder, error) {
	m := stored(dir)
	if m == nil {
		var err error
		m, err = Scan(ctx, dir, done)
		if err != nil {
			return nil, err
		}
		// A folder that cannot be written to is read again at the next start.
		_ = os.WriteFile(filepath.Join(dir, manifestName), m.text, 0o644)
	}

	return newComplete(m, dir), nil
}

// newComplete returns a folder that has all files.
func newComplete(m *Manifest, dir string) *Folder {
	f := newFolder(m, dir)
	for i := range f.has {
		f.has[i] = true
	}
	f.left = 0
	return f
}

func newFolder(m *Manifest, dir string) *Folder {
	return &Folder{manifest: m, dir: dir, has: make([]bool, m.Chunks()), left: m.Chunks(), changed: make(chan struct{})}
}

// stored returns the manifest of a folder if its files have its sizes and no file is newer; else nil.
func stored(dir string) *Manifest {
	at := filepath.Join(dir, manifestName)
	written, err := os.Stat(at)
	if err != nil || written.Size() > maxManifestBytes {
		return nil
	}
	text, err := os.ReadFile(at)
	if err != nil {
		return nil
	}
	m, err := ParseManifest(text)
	if err != nil {
		return nil
	}

	// Sums are not compared: to read 140 GB at each start would cost more than the fetch spares. A file that was changed in place has a
	// newer time.
	now, newest, err := list(dir)
	if err != nil || len(now) != len(m.Files) || newest.After(written.ModTime()) {
		return nil
	}
	for i, f := range now {
		if f.Name != m.Files[i].Name || f.Bytes != m.Files[i].Bytes {
			return nil
		}
	}
	return m
}

// Begin returns a folder whose files will come, beside dir until they are complete. Chunks that an earlier process has written there are
// kept. done is called with their bytes; it may be nil.
func Begin(ctx context.Context, m *Manifest, dir string, done func(n int)) (*Folder, error) {
	f := newFolder(m, dir+partial)

	// Bytes of another manifest are of no use: a model's files change as a whole.
	before, _ := os.ReadFile(filepath.Join(f.dir, manifestName))
	if string(before) != string(m.text) { // other files, or none
		if err := os.RemoveAll(f.dir); err != nil {
			return nil, err
		}
	}
	if err := f.makeFiles(); err != nil {
		return nil, fmt.Errorf("make room for the files of a model: %w", err)
	}
	if len(before) == 0 || f.left == 0 {
		return f, nil
	}
	return f, f.resume(ctx, done)
}

// makeFiles makes all files in their sizes. They are sparse: a disk that is too full shows it when chunks are written.
func (f *Folder) makeFiles() error {
	if err := os.MkdirAll(f.dir, 0o755); err != nil {
		return err
	}
	for _, file := range f.manifest.Files {
		at := filepath.Join(f.dir, filepath.FromSlash(file.Name))
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			return err
		}
		made, err := os.OpenFile(at, os.O_CREATE|os.O_RDWR, 0o644)
		if err == nil {
			err = errors.Join(made.Truncate(file.Bytes), made.Close())
		}
		if err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(f.dir, manifestName), f.manifest.text, 0o644)
}

// resume finds the chunks that are there. It trusts the bytes and no record of them, because a machine that loses power writes both in any
// order.
func (f *Folder) resume(ctx context.Context, done func(n int)) error {
	buffer := make([]byte, ChunkBytes)
	for i, c := range f.manifest.chunks {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		piece := buffer[:c.bytes]
		if err := f.readAt(piece, c); err != nil {
			return err
		}
		if sha256.Sum256(piece) == c.sum {
			f.has[i] = true
			f.left--
			if done != nil {
				done(c.bytes)
			}
		}
	}
	return nil
}

// readAt reads a chunk.
func (f *Folder) readAt(piece []byte, c chunk) error {
	file, err := f.open(c, os.O_RDONLY)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	_, err = file.ReadAt(piece, c.at)
	return err
}

// open opens the file of a chunk. The lock keeps the folder's name until it is open.
func (f *Folder) open(c chunk, flag int) (*os.File, error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return os.OpenFile(filepath.Join(f.dir, filepath.FromSlash(f.manifest.Files[c.file].Name)), flag, 0)
}

// errWrong means that a peer has sent other bytes than the manifest names.
var errWrong = errors.New("the chunk has another sum than the manifest names")

// write checks a chunk and writes it. Two goroutines may write the same chunk, with the same bytes. It is announced when it is written, so
// no receiver gets a part of it.
func (f *Folder) write(i int, piece []byte) error {
	c := f.manifest.chunks[i]
	if len(piece) != c.bytes || sha256.Sum256(piece) != c.sum {
		return errWrong
	}
	file, err := f.open(c, os.O_WRONLY)
	if err != nil {
		return err
	}
	_, err = file.WriteAt(piece, c.at)
	if err := errors.Join(err, file.Close()); err != nil {
		return err
	}

	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.has[i] {
		f.has[i] = true
		f.left--
		f.tell()
	}
	return nil
}

// tell wakes all that wait for a change. f.mu is held.
func (f *Folder) tell() {
	close(f.changed)
	f.changed = make(chan struct{})
}

// await waits until a chunk is there, or ctx ends.
func (f *Folder) await(ctx context.Context, i int) bool {
	for {
		f.mu.RLock()
		has, changed := f.has[i], f.changed
		f.mu.RUnlock()
		if has {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// send writes a chunk that is there. The copy goes from the file to the connection within the kernel if the connection is plain TCP. The
// bytes are not compared again: the receiver does it.
func (f *Folder) send(w io.Writer, i int) error {
	c := f.manifest.chunks[i]
	file, err := f.open(c, os.O_RDONLY)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	if _, err := file.Seek(c.at, io.SeekStart); err != nil {
		return err
	}
	_, err = io.CopyN(w, file, int64(c.bytes))
	return err
}

// finish gives a complete folder its name. A folder that was there is replaced. Engines that have its files open keep them. The files are
// on the disk before, because the name says that they are complete.
func (f *Folder) finish(dir string) error {
	for _, file := range f.manifest.Files {
		if err := flush(filepath.Join(f.dir, filepath.FromSlash(file.Name))); err != nil {
			return err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now() // no file is newer than the manifest
	if err := os.Chtimes(filepath.Join(f.dir, manifestName), now, now); err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.Rename(f.dir, dir); err != nil {
		return err
	}
	f.dir, f.way = dir, nil
	f.tell()
	return nil
}

// flush has the system write a file to its disk.
func flush(path string) error {
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	return errors.Join(file.Sync(), file.Close())
}

// Manifest returns the manifest of the folder.
func (f *Folder) Manifest() *Manifest { return f.manifest }

// Dir returns the folder's path.
func (f *Folder) Dir() string {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.dir
}

// missing returns the chunks that are missing, in order.
func (f *Folder) missing() (list []int) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	for i, has := range f.has {
		if !has {
			list = append(list, i)
		}
	}
	return list
}

// setWay records the nodes that the chunks of an incomplete folder pass; none if no chunks come. With none, the share refuses receivers:
// they would only wait here.
func (f *Folder) setWay(way []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.way = way
	f.tell()
}

// state returns the number of chunks that are there, and their way to this node. A complete folder is the beginning of ways, whatever
// the way of its chunks was.
func (f *Folder) state(node string) (has int, way []string) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if f.left == 0 {
		return len(f.has), []string{node}
	}
	return len(f.has) - f.left, f.way
}
