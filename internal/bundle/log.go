package bundle

import (
	"bytes"
	"errors"
	"io"
	"os"
)

// EndOfLog returns whole lines of the end of a decision log, at most that many bytes, behind the line with its version.
func EndOfLog(name string, most int64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.Size() <= most {
		return io.ReadAll(io.LimitReader(f, most))
	}

	head := make([]byte, 4<<10)
	if _, err := io.ReadFull(f, head); err != nil {
		return nil, err
	}
	version, _, found := bytes.Cut(head, []byte("\n"))
	if !found {
		return nil, errors.New("it is no decision log: its first line is too long")
	}
	end := make([]byte, most)
	n, err := f.ReadAt(end, info.Size()-most)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	// The first line is cut.
	_, lines, _ := bytes.Cut(end[:n], []byte("\n"))
	return append(append(bytes.Clone(version), '\n'), lines...), nil
}
