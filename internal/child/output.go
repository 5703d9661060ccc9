package child

import (
	"os"
	"strings"
)

// boundedFile is a log file of at most maxBytes. A full one gets the name with .1 at its end, and a new one
// is begun. It belongs to one goroutine.
type boundedFile struct {
	path     string
	maxBytes int64
	file     *os.File
	written  int64
}

// openBounded opens the file, and appends to its content.
func openBounded(path string, maxBytes int64) (*boundedFile, error) {
	f := &boundedFile{path: path, maxBytes: maxBytes}
	return f, f.open()
}

// open opens the file of that name.
func (f *boundedFile) open() error {
	file, err := os.OpenFile(f.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	info, err := file.Stat()
	if err != nil {
		_ = file.Close()
		return err
	}
	f.file, f.written = file, info.Size()
	return nil
}

// Write appends text. Text that cannot be written is dropped: a full disk must not stop an engine.
func (f *boundedFile) Write(text []byte) (int, error) {
	if f.written > 0 && f.written+int64(len(text)) > f.maxBytes {
		f.rotate()
	}
	if f.file != nil {
		n, _ := f.file.Write(text)
		f.written += int64(n)
	}
	return len(text), nil
}

// rotate begins a new file.
func (f *boundedFile) rotate() {
	if f.file != nil {
		_ = f.file.Close()
		f.file = nil
	}
	_ = os.Rename(f.path, f.path+".1")
	if err := f.open(); err != nil {
		f.written = 0 // the next bound tries it again
	}
}

// endMark begins the line that ends the output of a detached process.
const endMark = "the process ended: "

// LastLines returns the end of the output of a detached process, at most 64 KiB: of the one that is running, or of the one
// that has ended last. A carriage return ends a line too, as progress bars print it.
func LastLines(output string, running bool) []string {
	const tail = 64 << 10
	file, err := os.Open(output)
	if err != nil {
		return nil
	}
	defer func() { _ = file.Close() }()

	info, err := file.Stat()
	if err != nil {
		return nil
	}
	text := make([]byte, min(tail, info.Size()))
	n, _ := file.ReadAt(text, info.Size()-int64(len(text)))
	lines := strings.FieldsFunc(string(text[:n]), func(r rune) bool { return r == '\n' || r == '\r' })

	// The file has the output of earlier processes too.
	end := len(lines)
	if !running {
		end--
	}
	for i := end - 1; i >= 0; i-- {
		if strings.HasPrefix(lines[i], endMark) {
			return lines[i+1:]
		}
	}
	return lines
}
