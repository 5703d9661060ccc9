package extproc

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/stator-project/stator/internal/decisionlog"
)

// decisionFile is the file of the decision log. A full file is renamed, and replaces the one that was
// renamed before. It belongs to one goroutine.
type decisionFile struct {
	path  string
	limit int64 // bytes of a file from which a new one begins

	// file is an *os.File, or in tests a file on a full disk.
	file   io.WriteCloser
	size   int64
	opened bool // the file has no version line of this process yet
	cut    bool // the file may end in the middle of a line
}

// openDecisionFile opens a file to append to, and creates it if there is none.
func openDecisionFile(path string, limit int64) (*decisionFile, error) {
	f := &decisionFile{path: path, limit: limit}
	return f, f.open()
}

// open opens the file under path. After an error the old file stays open.
func (f *decisionFile) open() error {
	file, err := os.OpenFile(f.path, os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("open decision log (decisions.log, --decision-log): %w", err)
	}
	info, err := file.Stat()
	if err != nil {
		return errors.Join(fmt.Errorf("open decision log: %w", err), file.Close())
	}

	f.file = file
	f.size = info.Size()
	f.opened = true
	f.cut = endsInLine(file, info.Size())
	return nil
}

// endsInLine reports whether a file does not end with a newline: a full disk or a killed process leaves
// such a file.
func endsInLine(f *os.File, size int64) bool {
	if size == 0 {
		return false
	}
	last := make([]byte, 1)
	_, err := f.ReadAt(last, size-1)
	return err != nil || last[0] != '\n'
}

// append writes complete lines. A full file is replaced first, a line that was cut is ended, and a file
// that was just opened gets a version line.
func (f *decisionFile) append(lines []byte) error {
	if f.size >= f.limit {
		if err := f.replace(); err != nil {
			return err
		}
	}

	var prefix []byte
	if f.cut {
		prefix = append(prefix, '\n')
	}
	if f.opened {
		header := decisionlog.Header()
		prefix, _ = header.Append(prefix) // a header has no error
	}

	// One write, so that the version line and the lines after it are in the file together or not at all.
	n, err := f.file.Write(append(prefix, lines...))
	f.size += int64(n)
	f.cut = err != nil
	f.opened = f.opened && err != nil
	return err
}

// replace renames the full file, by ".1" after its name, and opens a new one.
func (f *decisionFile) replace() error {
	if err := os.Rename(f.path, f.path+".1"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("rename full decision log: %w", err)
	}
	full := f.file
	if err := f.open(); err != nil {
		return err
	}
	return full.Close()
}

// close closes the file after the last line was written.
func (f *decisionFile) close() { _ = f.file.Close() }
