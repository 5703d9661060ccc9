package workeragent

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/zeebo/xxh3"

	"github.com/stator-project/stator/internal/kv/feed"
)

// A cache file is a rank's cache at one position in its events, by which the next agent need not know all events since the engine's
// start. It is a header, the dump of the index, and a checksum of both:
//
//	magic      8 bytes
//	epoch      8 bytes: the engine process
//	rank       8 bytes
//	next       8 bytes: the number of the first batch that is not part of it
//	seconds    8 bytes: the engine's clock in the batch before that, a float64
//	blockSize  8 bytes: the engine's, in tokens
//	dump       see kvindex
//	checksum   8 bytes: xxh3
//
// Numbers are little endian. The file is complete or not there; it is not synced, because no engine survives its host.
const (
	cacheMagic  = "statorkv"
	cacheHeader = 6 * 8
	cacheSum    = 8
)

// maxCacheFile bounds a cache file in bytes: about four million blocks.
const maxCacheFile = 64 << 20

// cacheFile returns the path of the file of a rank.
func (s *State) cacheFile(worker string, rank int) string {
	return filepath.Join(s.cacheDir(worker), strconv.Itoa(rank))
}

// cacheDir returns the folder of the cache files of a worker.
func (s *State) cacheDir(worker string) string { return filepath.Join(s.dir, "caches", worker) }

// saveCache replaces the file of a rank. After an error the file before it is still there.
func (s *State) saveCache(c *feed.Snapshot) (err error) {
	path := s.cacheFile(c.Worker, c.Rank)
	defer func() {
		if err != nil {
			_ = os.Remove(path + ".new")
			err = fmt.Errorf("write cache file: %w", err)
		}
	}()

	if size := cacheHeader + len(c.Dump) + cacheSum; size > maxCacheFile {
		return fmt.Errorf("it has %d bytes: at most %d are possible", size, maxCacheFile)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}

	header := append(make([]byte, 0, cacheHeader), cacheMagic...)
	for _, field := range []uint64{c.Epoch, uint64(c.Rank), c.Next, math.Float64bits(c.Seconds), uint64(c.BlockSize)} {
		header = binary.LittleEndian.AppendUint64(header, field)
	}
	sum := xxh3.New()
	_, _ = sum.Write(header)
	_, _ = sum.Write(c.Dump)

	if err := writeParts(path+".new", header, c.Dump, binary.LittleEndian.AppendUint64(nil, sum.Sum64())); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// writeParts writes a file whose bytes are the parts, one after the other.
func writeParts(path string, parts ...[]byte) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	for _, p := range parts {
		if _, err := file.Write(p); err != nil {
			_ = file.Close()
			return err
		}
	}
	return file.Close()
}

// readCache returns the content of the file of a rank; nil without a file. An error means that the file cannot be used for this process.
func (s *State) readCache(worker string, epoch uint64, rank int) (*feed.Snapshot, error) {
	raw, err := readBounded(s.cacheFile(worker, rank))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read cache file: %w", err)
	}

	c, err := parseCache(raw)
	switch {
	case err != nil:
		return nil, fmt.Errorf("read cache file: %w", err)
	case c.Epoch != epoch || c.Rank != rank:
		return nil, errors.New("read cache file: it is of another process or rank")
	}
	c.Worker = worker
	return c, nil
}

// readBounded reads a regular file of at most maxCacheFile bytes.
func readBounded(path string) ([]byte, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe must not be waited for
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()

	info, err := file.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular() || info.Size() > maxCacheFile:
		return nil, fmt.Errorf("it is no file of at most %d bytes", maxCacheFile)
	}
	raw := make([]byte, info.Size())
	_, err = io.ReadFull(file, raw)
	return raw, err
}

// parseCache reads a cache file. The dump is a part of raw, and is checked when it is loaded.
func parseCache(raw []byte) (*feed.Snapshot, error) {
	if len(raw) < cacheHeader+cacheSum || !bytes.HasPrefix(raw, []byte(cacheMagic)) {
		return nil, errors.New("it is not a cache file")
	}
	body, sum := raw[:len(raw)-cacheSum], binary.LittleEndian.Uint64(raw[len(raw)-cacheSum:])
	if xxh3.Hash(body) != sum {
		return nil, errors.New("the checksum does not match")
	}

	field := func(i int) uint64 { return binary.LittleEndian.Uint64(body[i*8:]) }
	c := &feed.Snapshot{
		Epoch: field(1), Rank: int(field(2)), Next: field(3), Seconds: math.Float64frombits(field(4)), BlockSize: int(field(5)),
		Complete: true, Dump: body[cacheHeader:],
	}
	if c.Next == 0 || !(c.Seconds > 0) || len(c.Dump) == 0 {
		return nil, errors.New("it is at no position")
	}
	return c, nil
}

// forgetCaches removes the cache files of a worker, whose process has ended.
func (s *State) forgetCaches(worker string) { _ = os.RemoveAll(s.cacheDir(worker)) }
